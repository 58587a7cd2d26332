// Of the consumer.
inline constexpr bool kHostRows = true;
