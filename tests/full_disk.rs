//! PUB-03 on a real file system that is full: a tmpfs of 16 MiB in a mount namespace of its own.

use std::path::PathBuf;
use std::process::Command;

use crate::support::hermitmq::{Consumer, Frame, Producer};
use crate::support::{ServerProcess, binary};

/// The way in which this machine lets us mount: as root, or in a user namespace. `None` where it does not.
fn unshare() -> Option<Vec<&'static str>> {
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    ways.into_iter().find_map(|way| {
        let tried = Command::new("unshare")
            .args(way)
            .args(["sh", "-c", "mount -t tmpfs tmpfs /mnt"])
            .output()
            .ok()?;
        tried.status.success().then(|| way.to_vec())
    })
}

/// A tmpfs of 16 MiB on a folder, in a mount namespace that lives as long as this does.
struct SmallDisk {
    way: Vec<&'static str>,
    keeper: std::process::Child,
    root: PathBuf,
}

impl SmallDisk {
    fn mount(way: Vec<&'static str>, folder: &std::path::Path) -> Self {
        use std::io::BufRead as _;
        let script = "mount -t tmpfs -o size=16m tmpfs \"$0\" && echo ready && exec cat";
        let mut keeper = Command::new("unshare")
            .args(&way)
            .args(["sh", "-c", script])
            .arg(folder)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut line = String::new();
        let stdout = keeper.stdout.take().expect("stdout");
        std::io::BufReader::new(stdout)
            .read_line(&mut line)
            .expect("ready");
        assert_eq!(line.trim(), "ready");
        // Through /proc the tmpfs can be reached from outside the namespace.
        let root = PathBuf::from(format!("/proc/{}/root{}", keeper.id(), folder.display()));
        Self { way, keeper, root }
    }

    /// `basalt` inside the namespace. `nsenter` becomes it, so that signals reach it.
    fn basalt(&self) -> Command {
        let command = binary();
        let program = command.get_program().to_owned();
        let mut inside = Command::new("nsenter");
        inside
            .arg(format!("--target={}", self.keeper.id()))
            .arg("--mount");
        if self.way.contains(&"--user") {
            inside.args(["--user", "--preserve-credentials"]);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside.arg(program);
        inside
    }

    fn start(&self, data: &std::path::Path) -> ServerProcess {
        let mut command = self.basalt();
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--set", "log.segment_bytes=67108864", "--data"])
            .arg(data);
        ServerProcess::spawn(&mut command)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn payload(number: u64) -> Vec<u8> {
    let mut payload = vec![u8::try_from(number % 251).expect("small"); 64 << 10];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    payload
}

fn verify(server: &ServerProcess, acked: u64) {
    let mut consumer = Consumer::open(&server.address, "g", "full", 0).expect("open");
    for number in 0..acked {
        let frame = consumer.next().expect("frame");
        assert_eq!((frame.offset, frame.payload), (number, payload(number)));
    }
}

#[test]
fn pub_03_a_full_disk_refuses_and_resumes_by_itself() {
    let Some(way) = unshare() else {
        // The same story runs everywhere on the simulated disk (basalt-log); here it needs the right to mount.
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must be able to mount a tmpfs"
        );
        println!("not run: this needs the right to mount a tmpfs");
        return;
    };
    let folder = tempfile::tempdir().expect("folder");
    let disk = SmallDisk::mount(way, folder.path());
    let filler = disk.root.join("filler");
    std::fs::write(&filler, vec![1; 8 << 20]).expect("filler");
    let data = folder.path().join("data");
    let server = disk.start(&data);
    let mut producer = Producer::open(&server.address, "full", 0).expect("open");
    let mut acked = 0;
    let refusal = loop {
        if producer
            .send(&[Frame::new(1, b"", &payload(acked))])
            .is_err()
        {
            break None;
        }
        match producer.ack() {
            Ok(Ok(offset)) => {
                assert_eq!(offset, acked);
                acked += 1;
            }
            Ok(Err(refusal)) => break Some(refusal),
            Err(_) => break None,
        }
        assert!(acked < 256, "16 MiB never fill");
    };
    assert!(acked > 50, "only {acked} records of 64 KiB on 8 MiB");
    assert!(refusal.is_some(), "a full disk is a typed refusal");
    verify(&server, acked);
    server.kill();

    // Started again on the full disk: reading works, producing is refused.
    let server = disk.start(&data);
    verify(&server, acked);
    let mut producer = Producer::open(&server.address, "full", 0).expect("open");
    producer
        .send(&[Frame::new(1, b"", &payload(acked))])
        .expect("send");
    assert!(producer.ack().expect("ack").is_err());

    // Space comes back: producing goes on without a restart.
    std::fs::remove_file(&filler).expect("remove");
    let mut producer = Producer::open(&server.address, "full", 0).expect("open");
    producer
        .send(&[Frame::new(1, b"", &payload(acked))])
        .expect("send");
    assert_eq!(producer.ack().expect("ack"), Ok(acked));
    verify(&server, acked + 1);
    server.stop();
    let check = disk
        .basalt()
        .arg("check")
        .arg(&data)
        .output()
        .expect("check");
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stdout)
    );
}
