// Of the consumer.
inline constexpr bool kHostStatus = true;
