//! Sockets: the native protocol, sessions, sendfile and back-pressure.
