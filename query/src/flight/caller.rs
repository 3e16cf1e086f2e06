//! What a request says of who sent it.

use std::time::Duration;

use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

/// Header with which a client says how long it waits.
const TIMEOUT: &str = "grpc-timeout";
/// Header with which a client says what it sees of transactions: a setting of its session, which it sends with each call.
const ISOLATION: &str = "basalt-isolation";

/// Who asks, how long they wait, and what they see.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    pub(super) client: Option<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) sees_uncommitted: bool,
}

impl Caller {
    /// # Errors
    /// A header of our own that makes no sense.
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let isolation = request.metadata().get(ISOLATION);
        let sees_uncommitted = match isolation.map(|isolation| isolation.as_bytes()) {
            None | Some(b"read_committed") => false,
            Some(b"read_uncommitted") => true,
            Some(other) => {
                return Err(Status::invalid_argument(format!(
                    "the header {ISOLATION} is {:?}, but takes read_committed or read_uncommitted",
                    String::from_utf8_lossy(other)
                )));
            }
        };
        let address = request.remote_addr().map(|address| address.to_string());
        let agent = request.metadata().get("user-agent");
        let agent = agent.and_then(|agent| agent.to_str().ok());
        Ok(Self {
            client: match (address, agent) {
                (Some(address), Some(agent)) => Some(format!("{address} {agent}")),
                (address, agent) => address.or(agent.map(str::to_owned)),
            },
            timeout: timeout(request.metadata()),
            sees_uncommitted,
        })
    }
}

/// At most eight digits and a unit; anything else is as if it were not there.
fn timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get(TIMEOUT)?.to_str().ok()?;
    let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = (count.len() <= 8).then(|| count.parse().ok())??;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_read_in_each_unit_and_a_strange_one_ignored() {
        let read = |text: &str| {
            let mut request = Request::new(());
            request
                .metadata_mut()
                .insert(TIMEOUT, text.parse().unwrap());
            Caller::of(&request).unwrap().timeout
        };
        assert_eq!(read("2S"), Some(Duration::from_secs(2)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
        assert_eq!(read("250m"), Some(Duration::from_millis(250)));
        assert_eq!(read("7u"), Some(Duration::from_micros(7)));
        for strange in ["", "S", "1", "1s", "-1S", "999999999S", "1.5S", "xS"] {
            assert_eq!(read(strange), None, "{strange}");
        }
        assert_eq!(Caller::of(&Request::new(())).unwrap().timeout, None);
    }

    #[test]
    fn what_is_not_committed_is_seen_only_by_those_who_say_so() {
        let read = |text: &'static str| {
            let mut request = Request::new(());
            let value = tonic::metadata::MetadataValue::from_static(text);
            request.metadata_mut().insert(ISOLATION, value);
            Caller::of(&request).map(|caller| caller.sees_uncommitted)
        };
        assert!(!Caller::of(&Request::new(())).unwrap().sees_uncommitted);
        assert!(!read("read_committed").unwrap());
        assert!(read("read_uncommitted").unwrap());
        let code = read("dirty").unwrap_err().code();
        assert_eq!(code, tonic::Code::InvalidArgument);
    }
}
