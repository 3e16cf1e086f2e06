//! The 29-byte frame, handshakes, acks, session messages and the Kafka record batch, as encoders and decoders.
