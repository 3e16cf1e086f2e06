//! Records from a file or a pipe: one a line, read on a thread of its own, handed over in chunks.
//!
//! The bytes of a line are kept as they are; only the line feed that ends it is left out (a carriage return stays, an
//! empty line is an empty record, a last line without line feed is a record too). A chunk is handed over as soon as
//! nothing more is waiting to be read, so that lines of a slow pipe are not held back.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use bytes::Bytes;
use tokio::sync::mpsc;

const READ_BYTES: usize = 256 << 10;
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS_AHEAD: usize = 8;
/// Longer lines are refused before they fill memory; a server's own limit is far below.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// Why the input could not be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("cannot read {name}")]
    Read {
        name: String,
        #[source]
        source: std::io::Error,
    },
    #[error("line {line} of {name} is longer than {MAX_LINE_BYTES} bytes")]
    LineTooLong { name: String, line: u64 },
}

/// Whole lines.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Bytes,
    /// Start and end of each line in `bytes`, without its line feed.
    lines: Vec<(usize, usize)>,
    /// Bytes read for this chunk, line feeds included.
    pub(crate) read_bytes: u64,
}

impl Chunk {
    pub(crate) fn lines(&self) -> impl Iterator<Item = Bytes> + '_ {
        self.lines
            .iter()
            .map(|(start, end)| self.bytes.slice(*start..*end))
    }

    pub(crate) fn line_count(&self) -> usize {
        self.lines.len()
    }
}

/// Where lines come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    File(PathBuf),
    Stdin,
    /// Bytes inside the binary.
    Embedded(&'static [u8]),
}

impl Source {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "standard input".to_owned(),
            Self::Embedded(_) => "the bundled sample".to_owned(),
        }
    }

    /// Length in bytes where it is known beforehand.
    pub(crate) fn total_bytes(&self) -> Option<u64> {
        match self {
            Self::File(path) => std::fs::metadata(path)
                .ok()
                .filter(std::fs::Metadata::is_file)
                .map(|file| file.len()),
            Self::Stdin => None,
            Self::Embedded(bytes) => Some(bytes.len() as u64),
        }
    }

    /// Starts reading. The channel ends after the last chunk or after an error.
    pub(crate) fn read(self) -> Result<mpsc::Receiver<Result<Chunk, InputError>>, InputError> {
        let name = self.name();
        let reader: Box<dyn Read + Send> = match self {
            Self::File(path) => {
                Box::new(
                    std::fs::File::open(&path).map_err(|source| InputError::Read {
                        name: name.clone(),
                        source,
                    })?,
                )
            }
            Self::Stdin => Box::new(std::io::stdin()),
            Self::Embedded(bytes) => Box::new(bytes),
        };
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        // Not `spawn_blocking`: a read of a pipe may never return, and must not hold up the end of the program.
        std::thread::spawn(move || {
            if let Err(error) = send_chunks(&name, reader, &sender) {
                let _ = sender.blocking_send(Err(error));
            }
        });
        Ok(receiver)
    }
}

fn send_chunks(
    name: &str,
    reader: impl Read,
    sender: &mpsc::Sender<Result<Chunk, InputError>>,
) -> Result<(), InputError> {
    let mut reader = BufReader::with_capacity(READ_BYTES, reader);
    let mut line_number = 0;
    loop {
        let (chunk, ended) = next_chunk(name, &mut reader, &mut line_number)?;
        if !chunk.lines.is_empty() && sender.blocking_send(Ok(chunk)).is_err() {
            return Ok(()); // nobody wants the rest
        }
        if ended {
            return Ok(());
        }
    }
}

/// Lines until the chunk is full or the next read would wait; `true` at the end of the input.
fn next_chunk<R: Read>(
    name: &str,
    reader: &mut BufReader<R>,
    line_number: &mut u64,
) -> Result<(Chunk, bool), InputError> {
    let mut bytes = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4);
    let mut lines = Vec::new();
    loop {
        let start = bytes.len();
        let read = (&mut *reader)
            .take(MAX_LINE_BYTES + 1)
            .read_until(b'\n', &mut bytes)
            .map_err(|source| InputError::Read {
                name: name.to_owned(),
                source,
            })?;
        if read == 0 {
            return Ok((finish(bytes, lines), true));
        }
        *line_number += 1;
        let ended_by_line_feed = bytes.last() == Some(&b'\n');
        if !ended_by_line_feed && read as u64 > MAX_LINE_BYTES {
            return Err(InputError::LineTooLong {
                name: name.to_owned(),
                line: *line_number,
            });
        }
        lines.push((start, bytes.len() - usize::from(ended_by_line_feed)));
        if bytes.len() >= CHUNK_BYTES || reader.buffer().is_empty() {
            return Ok((finish(bytes, lines), false));
        }
    }
}

fn finish(bytes: Vec<u8>, lines: Vec<(usize, usize)>) -> Chunk {
    Chunk {
        read_bytes: bytes.len() as u64,
        bytes: bytes.into(),
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(input: &'static [u8]) -> Vec<Vec<u8>> {
        let mut receiver = Source::Embedded(input).read().unwrap();
        let mut lines = Vec::new();
        while let Some(chunk) = receiver.blocking_recv() {
            lines.extend(chunk.unwrap().lines().map(|line| line.to_vec()));
        }
        lines
    }

    #[test]
    fn a_line_feed_ends_a_record_and_nothing_else_is_touched() {
        assert_eq!(lines_of(b"a\nb\n"), [b"a", b"b"]);
        assert_eq!(lines_of(b"a\r\n\xff\x00\r\n"), [&b"a\r"[..], b"\xff\x00\r"]);
        assert_eq!(lines_of(b"\n\na\n\n"), [&b""[..], b"", b"a", b""]);
        assert_eq!(lines_of(b""), [] as [&[u8]; 0]);
    }

    #[test]
    fn a_last_line_without_line_feed_is_a_record_too() {
        assert_eq!(lines_of(b"a\nb"), [b"a", b"b"]);
        assert_eq!(lines_of(b"\r"), [b"\r"]);
    }

    #[test]
    fn lines_longer_than_a_read_and_a_chunk_come_whole() {
        let mut input = vec![b'x'; 3 * CHUNK_BYTES + 7];
        input.push(b'\n');
        input.extend_from_slice(b"end\n");
        let input: &'static [u8] = input.leak();
        let lines = lines_of(input);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].len(), 3 * CHUNK_BYTES + 7);
        assert_eq!(lines[1], b"end");
    }

    #[test]
    fn a_line_of_a_slow_pipe_is_handed_over_before_the_next_one_is_written() {
        struct Slow(std::sync::mpsc::Receiver<&'static [u8]>);
        impl Read for Slow {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                let Ok(bytes) = self.0.recv() else {
                    return Ok(0);
                };
                out[..bytes.len()].copy_from_slice(bytes);
                Ok(bytes.len())
            }
        }
        let (pipe, slow) = std::sync::mpsc::channel();
        let (sender, mut receiver) = mpsc::channel(1);
        let reader = std::thread::spawn(move || send_chunks("pipe", Slow(slow), &sender));
        for line in [&b"first\n"[..], b"second\n"] {
            pipe.send(line).unwrap();
            let chunk = receiver.blocking_recv().unwrap().unwrap();
            assert_eq!(chunk.lines().collect::<Vec<_>>(), [&line[..line.len() - 1]]);
        }
        drop(pipe);
        assert!(receiver.blocking_recv().is_none());
        reader.join().unwrap().unwrap();
    }
}
