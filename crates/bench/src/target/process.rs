//! One process under test: started, watched, killed when dropped; and what it has used.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// Linux' USER_HZ: the unit of CPU time in /proc, whatever the kernel's own clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running program; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program whose output goes to `log`. With a delay, every fsync and fdatasync of the program takes that
    /// much longer. strace adds the time on the way out of these calls and stops the program at no other call.
    ///
    /// # Errors
    /// When the program, or strace where a delay is asked for, does not start.
    pub fn start(program: &Path, arguments: &[OsString], log: PathBuf, flush_delay_ms: u32) -> Result<Self> {
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = if flush_delay_ms > 0 {
            let mut strace = Command::new("strace");
            // -D makes strace the grandchild, so that the process we know is the program.
            strace.args(["-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-e"]);
            strace.arg(format!("inject=fsync,fdatasync:delay_exit={}", u64::from(flush_delay_ms) * 1000));
            strace.args(["-o", "/dev/null", "--"]).arg(program);
            strace
        } else {
            Command::new(program)
        };
        command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| {
            if flush_delay_ms > 0 {
                format!("start strace, which delays the flushes of {} (install strace)", program.display())
            } else {
                format!("start {}", program.display())
            }
        })?;
        Ok(Self { child, log })
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// When it has ended; the message has the end of its log.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("a node has ended ({status}): {}", self.log_tail()),
        }
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().map(|line| line.chars().take(400).collect::<String>()).collect::<Vec<_>>().join("\n")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU seconds used so far, user and system.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cpu_s(&self) -> Result<f64> {
        cpu_of(&self.read("stat")?)
    }

    /// Memory in use now, bytes.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn rss_bytes(&self) -> Result<f64> {
        Ok(field(&self.read("status")?, "VmRSS:")? * 1024.0)
    }

    /// Bytes that it has caused to be written to a device so far.
    ///
    /// # Errors
    /// When the process is gone, or /proc/PID/io may not be read.
    pub fn written_bytes(&self) -> Result<f64> {
        field(&self.read("io")?, "write_bytes:")
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.id());
        std::fs::read_to_string(&path).with_context(|| path)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("process {}: {error}", self.child.id());
        }
    }
}

/// CPU seconds in the text of /proc/PID/stat. The name in it may contain anything, so fields count from its last ')'.
fn cpu_of(stat: &str) -> Result<f64> {
    let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    let ticks = fields.get(11..13).context("/proc/PID/stat is short")?;
    let ticks: f64 = ticks.iter().map(|n| n.parse::<f64>()).sum::<Result<_, _>>()?;
    Ok(ticks / TICKS_PER_SECOND)
}

fn field(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| name.to_owned())?;
    Ok(line.split_whitespace().next().context("no value")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: PathBuf) -> Result<Process> {
        Process::start(Path::new("/bin/sh"), &["-c".into(), script.into()], log, 0)
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() -> Result<()> {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 100 1 1";
        assert_eq!(cpu_of(stat)?, 2.0);
        assert!(cpu_of("7 (a) S 1").is_err());
        Ok(())
    }

    #[test]
    fn what_a_process_uses_is_counted_and_its_end_is_noticed_with_its_last_words() -> Result<()> {
        let dir = tempfile::tempdir()?;
        // Ends when its standard input would: never. `read` from a fifo nobody writes to keeps it alive.
        let fifo = dir.path().join("fifo");
        anyhow::ensure!(Command::new("mkfifo").arg(&fifo).status()?.success());
        let script =
            format!("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo counted >&2; read x < {}", fifo.display());
        let mut process = shell(&script, dir.path().join("log"))?;
        while !process.log_tail().contains("counted") {
            process.check()?;
            std::thread::yield_now();
        }
        assert!(process.cpu_s()? > 0.0);
        assert!(process.rss_bytes()? > 100_000.0);
        process.written_bytes()?;
        let id = process.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{id}/stat")).exists(), "it outlives its handle");

        let mut process = shell("echo last words; exit 3", dir.path().join("log"))?;
        let error = loop {
            if let Err(error) = process.check() {
                break error.to_string();
            }
            std::thread::yield_now();
        };
        assert!(error.contains("exit status: 3") && error.contains("last words"), "{error}");
        Ok(())
    }

    #[test]
    fn a_delayed_flush_takes_at_least_its_delay() -> Result<()> {
        let dir = tempfile::tempdir()?;
        if Command::new("strace").arg("--version").output().is_err() {
            let error = Process::start(Path::new("/bin/true"), &[], dir.path().join("log"), 1).expect_err("no strace");
            assert!(error.to_string().contains("install strace"), "{error}");
            return Ok(());
        }
        // dd flushes once at its end. Two flushes of 150 ms cannot take less than 300.
        let file = dir.path().join("file");
        let once = format!("dd if=/dev/zero of={} bs=1 count=1 conv=fdatasync 2>/dev/null", file.display());
        let script = format!("{once}; {once}");
        let since = std::time::Instant::now();
        let mut process =
            Process::start(Path::new("/bin/sh"), &["-c".into(), script.into()], dir.path().join("log"), 150)?;
        while process.check().is_ok() {
            std::thread::yield_now();
        }
        assert!(since.elapsed().as_millis() >= 300, "{:?}", since.elapsed());
        Ok(())
    }
}
