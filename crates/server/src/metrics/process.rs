//! The metrics of every Prometheus client about its process, read from `/proc` when scraped. On other systems than Linux
//! they stay 0.

use std::fs;

use prometheus::Gauge;

use super::register::{MetricsError, Register};
use crate::limits;

/// Kernel time unit in `/proc`: USER_HZ, 100 on every Linux ABI that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) struct Process {
    cpu_seconds: Gauge,
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    virtual_max_bytes: Gauge,
    received_bytes: Gauge,
    sent_bytes: Gauge,
    start_time: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    fd_used: Gauge,
    fd_limit: Gauge,
}

impl Process {
    pub(super) fn register(register: &Register<'_>) -> Result<Process, MetricsError> {
        Ok(Process {
            cpu_seconds: register.float("process_cpu_seconds_total", "User and system CPU time, seconds.")?,
            resident_bytes: register.float("process_resident_memory_bytes", "Resident memory, bytes.")?,
            virtual_bytes: register.float("process_virtual_memory_bytes", "Virtual memory, bytes.")?,
            virtual_max_bytes: register
                .float("process_virtual_memory_max_bytes", "Most virtual memory, bytes; -1 for no limit.")?,
            received_bytes: register
                .float("process_network_receive_bytes_total", "Bytes received, with all that share its network.")?,
            sent_bytes: register
                .float("process_network_transmit_bytes_total", "Bytes sent, with all that share its network.")?,
            start_time: register.float("process_start_time_seconds", "Start of the process, Unix time.")?,
            open_fds: register.float("process_open_fds", "Open file descriptors.")?,
            max_fds: register.float("process_max_fds", "Most file descriptors that may be open.")?,
            fd_used: register.float("os_fd_used", "Open file descriptors.")?,
            fd_limit: register.float("os_fd_limit", "Most file descriptors that may be open.")?,
        })
    }

    pub(super) fn refresh(&self) {
        if let Ok(stat) = fs::read_to_string("/proc/self/stat") {
            // The command's name, in parentheses, may itself hold spaces and parentheses.
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_ascii_whitespace().collect();
            let number = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
            self.cpu_seconds.set((number(11) + number(12)) / TICKS_PER_SECOND);
            self.start_time.set(boot_time() + number(19) / TICKS_PER_SECOND);
            self.virtual_bytes.set(number(20));
        }
        if let Ok(status) = fs::read_to_string("/proc/self/status") {
            let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = kib.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse::<f64>().ok());
            self.resident_bytes.set(kib.unwrap_or(0.0) * 1024.0);
        }
        if let Ok(devices) = fs::read_to_string("/proc/self/net/netstat") {
            let octets = |name| octets(&devices, name).unwrap_or(0.0);
            self.received_bytes.set(octets("InOctets"));
            self.sent_bytes.set(octets("OutOctets"));
        }
        #[allow(clippy::cast_precision_loss)] // a limit above 2^53 is "unlimited"
        self.virtual_max_bytes.set(limits::virtual_memory().map_or(-1.0, |limit| limit as f64));
        let used = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let used = f64::from(u32::try_from(used).unwrap_or(u32::MAX));
        self.open_fds.set(used);
        self.fd_used.set(used);
        if let Some(limit) = limits::open_files() {
            #[allow(clippy::cast_precision_loss)] // a limit above 2^53 is "unlimited"
            let limit = limit as f64;
            self.max_fds.set(limit);
            self.fd_limit.set(limit);
        }
    }
}

/// A column of the `IpExt` table: names in its first line, values in the second.
fn octets(netstat: &str, name: &str) -> Option<f64> {
    let mut lines = netstat.lines().filter(|line| line.starts_with("IpExt:"));
    let column = lines.next()?.split_ascii_whitespace().position(|column| column == name)?;
    lines.next()?.split_ascii_whitespace().nth(column)?.parse().ok()
}

fn boot_time() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0.0)
}
