//! Basalt from outside: the binary, its sockets and its files, as users and their clients meet them.

mod crash;
mod dependencies;
mod full_disk;
mod hermitmq;
mod left_queries;
mod silent_peers;
mod slow_reader;
mod support;
mod typed_topics;
mod whole_path;
