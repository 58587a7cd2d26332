// Of the consumer.
inline constexpr bool kHostVersion = true;
