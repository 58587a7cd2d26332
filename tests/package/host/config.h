// Of the consumer.
inline constexpr bool kHostConfig = true;
