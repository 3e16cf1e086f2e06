//! PUB-16 with a real limit: 1024 descriptors, 2000 connections of each sort, and a good client all the while.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::support::hermitmq::{Consumer, Frame, Producer};
use crate::support::{ServerProcess, binary, deadline, now};

fn server(data: &std::path::Path) -> ServerProcess {
    let inner = binary();
    let mut command = Command::new("sh");
    // Sets both limits: the server raises the soft one as far as it may.
    command
        .args(["-c", "ulimit -n 1024 && exec \"$0\" \"$@\""])
        .arg(inner.get_program())
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data);
    for setting in [
        "handshake_timeout_ms",
        "frame_timeout_ms",
        "send_timeout_ms",
    ] {
        command.args(["--set", &format!("server.{setting}=1500")]);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    ServerProcess::spawn(&mut command)
}

/// Open sockets; files come and go with what the log makes ahead.
fn sockets(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd"))
        .expect("descriptors")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

fn cpu_ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("stat");
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .expect("fields")
        .split(' ')
        .collect();
    fields[11].parse::<u64>().expect("user") + fields[12].parse::<u64>().expect("system")
}

#[test]
fn pub_16_silent_peers_beyond_the_descriptor_limit_lock_nobody_out() {
    let wanted = 4096;
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: Some(limits.maximum.map_or(wanted, |maximum| maximum.min(wanted))),
        maximum: limits.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised)
        .expect("2000 sockets here");
    let data = tempfile::tempdir().expect("folder");
    let server = server(data.path());
    let mut good = Producer::open(&server.address, "t", 0).expect("open");
    good.send(&[Frame::new(1, b"", b"first")]).expect("send");
    assert_eq!(good.ack().expect("ack"), Ok(0));
    let mut idle = Consumer::open(&server.address, "idle", "t", 0).expect("open");
    assert_eq!(idle.next().expect("frame").payload, b"first");
    let at_rest = sockets(server.id());
    let mut stored = 1;

    let openings: [&[u8]; 4] = [
        b"",
        b"\x01",
        b"\x01\x01t",
        b"\x01\x01t\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0",
    ];
    for opening in openings {
        let mut peers = Vec::new();
        for number in 0..2000 {
            let Ok(mut peer) = TcpStream::connect(&server.address) else {
                continue;
            };
            // A server that is full may have closed it already.
            let _ = peer.write_all(opening);
            peers.push(peer);
            if number % 250 == 0 {
                // The good client goes on, and another can come.
                good.send(&[Frame::new(1, b"", b"meanwhile")])
                    .expect("send");
                assert_eq!(good.ack().expect("ack"), Ok(stored));
                stored += 1;
                let mut other = Producer::open(&server.address, "t", 0).expect("open");
                other.send(&[Frame::new(1, b"", b"other")]).expect("send");
                assert_eq!(other.ack().expect("a new client is served"), Ok(stored));
                stored += 1;
            }
        }
        // Every silent peer is closed in time, by the server.
        for mut peer in peers {
            peer.set_read_timeout(Some(Duration::from_secs(30)))
                .expect("timeout");
            // The end, perhaps after a refusal, or a reset that says the same.
            if let Err(error) = peer.read_to_end(&mut Vec::new()) {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            }
        }
        let limit = deadline();
        while sockets(server.id()) > at_rest {
            assert!(
                now() < limit,
                "sockets stay taken: {} of {at_rest}",
                sockets(server.id())
            );
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
    // The idle consumer was never closed, and sees all of it.
    for offset in 1..stored {
        assert_eq!(idle.next().expect("frame").offset, offset);
    }
    let before = cpu_ticks(server.id());
    std::thread::park_timeout(Duration::from_secs(2));
    let spent = cpu_ticks(server.id()) - before;
    assert!(
        spent <= 20,
        "an idle server spent {spent} ticks of 10 ms in 2 s"
    );
    server.stop();
}
