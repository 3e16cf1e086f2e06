//! Keeping the machine's cores from sleeping: a request to Linux's power management that holds as long as its file is open
//! (<https://docs.kernel.org/power/pm_qos_interface.html>).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

const DEVICE: &str = "/dev/cpu_dma_latency";
/// No state of a core may take longer to wake up from, in microseconds and hexadecimal digits: it waits awake.
const LONGEST_WAKE_UP_US: &[u8] = b"0";

/// The request, for as long as this is kept.
#[derive(Debug)]
pub(crate) struct CoresAwake {
    _request: File,
}

impl CoresAwake {
    /// Asks for it. Refused, the server is slower and otherwise the same: it goes on with a warning.
    pub(crate) fn request() -> Option<Self> {
        match request_at(Path::new(DEVICE)) {
            Ok(request) => Some(request),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cores are not kept awake (server.keep_cores_awake): {DEVICE} must be writable, which it is for root"
                );
                None
            }
        }
    }
}

fn request_at(device: &Path) -> io::Result<CoresAwake> {
    let mut file = OpenOptions::new().write(true).open(device)?;
    file.write_all(LONGEST_WAKE_UP_US)?;
    Ok(CoresAwake { _request: file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_for_no_time_at_all_and_ends_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device");
        assert!(request_at(&device).is_err(), "no device is made");
        std::fs::write(&device, "").unwrap();
        let request = request_at(&device).unwrap();
        assert_eq!(std::fs::read(&device).unwrap(), b"0");
        let descriptors = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
                .filter(|path| *path == device)
                .count()
        };
        assert_eq!(descriptors(), 1, "it holds while it is kept");
        drop(request);
        assert_eq!(descriptors(), 0);
    }
}
