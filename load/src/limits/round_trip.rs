//! How long 129 bytes take there and back over loopback TCP.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::network::connection;
use super::{FRAME_BYTES, Pair};
use crate::clock::Timeline;
use crate::stats::Latencies;

const WARM_UP: u32 = 1_000;
const TRIPS: u32 = 10_000;

/// p50 and p99, in microseconds, with an echo on a thread that blocks.
pub(super) fn blocking() -> io::Result<Pair> {
    let (near, mut far) = connection()?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut bytes = [0; FRAME_BYTES];
            while far.read_exact(&mut bytes).is_ok() {
                far.write_all(&bytes)?;
            }
            Ok(())
        });
        let found = trips(near);
        echo.join()
            .unwrap_or_else(|_| Err(io::Error::other("the echo failed")))?;
        found
    })
}

/// p50 and p99, in microseconds, with an echo on a multi-threaded runtime as a server has one.
pub(super) fn tokio() -> io::Result<Pair> {
    // On a thread of its own: the caller's may belong to a runtime already.
    let measured = thread::scope(|scope| {
        let measure = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            let (near, far) = connection()?;
            far.set_nonblocking(true)?;
            let echo = runtime.spawn(async move {
                let mut far = tokio::net::TcpStream::from_std(far)?;
                let mut bytes = [0; FRAME_BYTES];
                while far.read_exact(&mut bytes).await.is_ok() {
                    far.write_all(&bytes).await?;
                }
                Ok::<(), io::Error>(())
            });
            let found = trips(near)?;
            runtime.block_on(echo).map_err(io::Error::other)??;
            Ok(found)
        });
        measure.join()
    });
    measured.unwrap_or_else(|_| Err(io::Error::other("the runtime failed")))
}

fn trips(mut stream: TcpStream) -> io::Result<Pair> {
    let sent = [0x5a; FRAME_BYTES];
    let mut received = [0; FRAME_BYTES];
    let mut latencies = Latencies::default();
    for number in 0..WARM_UP + TRIPS {
        let started = Timeline::start();
        stream.write_all(&sent)?;
        stream.read_exact(&mut received)?;
        if number >= WARM_UP {
            latencies.record(started.now_ns(), 1);
        }
    }
    Ok((latencies.quantile_us(0.5), latencies.quantile_us(0.99)))
}
