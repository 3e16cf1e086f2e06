//! The five compressions of a record batch, each bounded in what it may yield.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::BatchError;

/// How a batch's records are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    /// Not at all.
    #[default]
    None = 0,
    /// gzip.
    Gzip = 1,
    /// Snappy, written in the framing of snappy-java; raw Snappy, which librdkafka writes, is read too.
    Snappy = 2,
    /// LZ4's frame format.
    Lz4 = 3,
    /// Zstandard.
    Zstd = 4,
}

/// What a compression library said.
#[derive(Debug, Clone)]
pub struct CodecError(Arc<io::Error>);

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for CodecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Two are equal when they say the same.
impl PartialEq for CodecError {
    fn eq(&self, other: &Self) -> bool {
        self.0.kind() == other.0.kind() && self.0.to_string() == other.0.to_string()
    }
}

impl Eq for CodecError {}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// The largest window a zstd stream may ask for: 2^27, what the highest levels use. It is reserved, not touched, until
/// the stream has yielded as much.
const ZSTD_MAX_WINDOW_LOG: u32 = 27;
const ZSTD_LEVEL: i32 = 3;

/// Room for so many times the compressed bytes is made before they are decompressed: what they yield is mostly not moved then, which
/// takes longer than decompressing it.
const USUAL_RATIO: usize = 4;

const XERIAL_MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
/// Magic, version and oldest compatible version.
const XERIAL_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
const XERIAL_BLOCK_BYTES: usize = 32 << 10;

impl Compression {
    /// The compression that the low three bits of a batch's attributes name.
    ///
    /// # Errors
    /// [`BatchError::UnknownCompression`] for 5 to 7.
    pub const fn from_attributes(attributes: i16) -> Result<Self, BatchError> {
        match attributes & 7 {
            0 => Ok(Self::None),
            1 => Ok(Self::Gzip),
            2 => Ok(Self::Snappy),
            3 => Ok(Self::Lz4),
            4 => Ok(Self::Zstd),
            found => Err(BatchError::UnknownCompression {
                found: found.to_be_bytes()[1],
            }),
        }
    }

    /// Yields what `bytes` decompress to, if that is at most `max_bytes`.
    pub(super) fn decompress<'a>(
        self,
        bytes: &'a [u8],
        max_bytes: u64,
    ) -> Result<Cow<'a, [u8]>, BatchError> {
        let mut out = Vec::new();
        let result = match self {
            Self::None => {
                check_size(bytes.len(), max_bytes)?;
                return Ok(Cow::Borrowed(bytes));
            }
            Self::Gzip => {
                let decoder = flate2::bufread::MultiGzDecoder::new(bytes);
                read_bounded(decoder, bytes.len(), max_bytes, &mut out)
            }
            Self::Lz4 => {
                let decoder = lz4_flex::frame::FrameDecoder::new(bytes);
                read_bounded(decoder, bytes.len(), max_bytes, &mut out)
            }
            Self::Zstd => {
                zstd::stream::read::Decoder::with_buffer(bytes).and_then(|mut decoder| {
                    decoder.window_log_max(ZSTD_MAX_WINDOW_LOG)?;
                    read_bounded(decoder, bytes.len(), max_bytes, &mut out)
                })
            }
            Self::Snappy => {
                unsnap(bytes, max_bytes, &mut out)?;
                Ok(())
            }
        };
        result.map_err(|error| self.failed(error))?;
        check_size(out.len(), max_bytes)?;
        Ok(Cow::Owned(out))
    }

    /// Appends `bytes`, compressed.
    pub(super) fn compress(self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), BatchError> {
        let result = match self {
            Self::None => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Self::Gzip => {
                let mut encoder =
                    flate2::write::GzEncoder::new(out, flate2::Compression::default());
                encoder
                    .write_all(bytes)
                    .and_then(|()| encoder.finish().map(drop))
            }
            Self::Snappy => snap_xerial(bytes, out),
            Self::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(out);
                encoder
                    .write_all(bytes)
                    .and_then(|()| encoder.finish().map(drop).map_err(io::Error::other))
            }
            Self::Zstd => zstd::stream::copy_encode(bytes, out, ZSTD_LEVEL),
        };
        result.map_err(|error| self.failed(error))
    }

    fn failed(self, error: io::Error) -> BatchError {
        BatchError::Codec {
            compression: self,
            source: CodecError(Arc::new(error)),
        }
    }
}

fn check_size(found_bytes: usize, max_bytes: u64) -> Result<(), BatchError> {
    if found_bytes as u64 > max_bytes {
        return Err(BatchError::TooLarge {
            limit_bytes: max_bytes,
        });
    }
    Ok(())
}

/// Reads to the end, but at most one byte more than `max_bytes`, which is enough to know that it is too much. There are
/// `compressed_bytes` of it.
fn read_bounded(
    decoder: impl Read,
    compressed_bytes: usize,
    max_bytes: u64,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let usual = compressed_bytes.saturating_mul(USUAL_RATIO);
    out.reserve(usual.min(usize::try_from(max_bytes).unwrap_or(usize::MAX)));
    decoder
        .take(max_bytes.saturating_add(1))
        .read_to_end(out)
        .map(drop)
}

fn unsnap(bytes: &[u8], max_bytes: u64, out: &mut Vec<u8>) -> Result<(), BatchError> {
    if !bytes.starts_with(&XERIAL_MAGIC) {
        return unsnap_block(bytes, max_bytes, out);
    }
    let cut = |what| Compression::Snappy.failed(io::Error::new(io::ErrorKind::InvalidData, what));
    let mut rest = bytes
        .get(XERIAL_HEADER.len()..)
        .ok_or_else(|| cut("the header is cut off"))?;
    while !rest.is_empty() {
        let (length, behind) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| cut("a block's length is cut off"))?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let (block, next) = behind
            .split_at_checked(length)
            .ok_or_else(|| cut("a block is cut off"))?;
        unsnap_block(block, max_bytes, out)?;
        rest = next;
    }
    Ok(())
}

/// Decompresses one block behind `out`. What the block claims to yield is believed only as far as the limit and its own
/// length allow: no snappy element yields more than 64 bytes for 2.
fn unsnap_block(block: &[u8], max_bytes: u64, out: &mut Vec<u8>) -> Result<(), BatchError> {
    let failed = |error: snap::Error| Compression::Snappy.failed(io::Error::other(error));
    let claimed = snap::raw::decompress_len(block).map_err(failed)?;
    let start = out.len();
    check_size(start.saturating_add(claimed), max_bytes)?;
    if claimed > block.len().saturating_mul(32) {
        let what = "a block claims more than its length can yield";
        return Err(Compression::Snappy.failed(io::Error::new(io::ErrorKind::InvalidData, what)));
    }
    out.resize(start + claimed, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, &mut out[start..])
        .map_err(failed)?;
    out.truncate(start + written);
    Ok(())
}

fn snap_xerial(bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = snap::raw::Encoder::new();
    out.extend_from_slice(&XERIAL_HEADER);
    for chunk in bytes.chunks(XERIAL_BLOCK_BYTES) {
        let block = encoder.compress_vec(chunk).map_err(io::Error::other)?;
        let length = u32::try_from(block.len()).map_err(io::Error::other)?;
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&block);
    }
    Ok(())
}
