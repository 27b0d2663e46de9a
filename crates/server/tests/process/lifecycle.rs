//! The real binary: what it prints, and how it ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::support::PATIENCE;

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn eddy(dir: &std::path::Path, args: &[&str]) -> Process {
    eddy_in(&[], dir, args)
}

fn eddy_in(environment: &[(&str, &str)], dir: &std::path::Path, args: &[&str]) -> Process {
    let mut child = Command::new(env!("CARGO_BIN_EXE_eddy"))
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir(dir)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (send, lines) = channel();
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    Process { child, lines }
}

const FREE_PORTS: &[&str] = &[
    "--listen-client-urls=http://127.0.0.1:0",
    "--advertise-client-urls=http://127.0.0.1:2379",
    "--listen-peer-urls=http://127.0.0.1:0",
];

impl Process {
    fn wait_for(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line with {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

#[test]
fn it_says_when_it_is_ready_and_ends_well_on_a_signal() {
    for signal in ["TERM", "INT"] {
        let dir = tempfile::tempdir().unwrap();
        let mut process = eddy(dir.path(), FREE_PORTS);
        let line = process.wait_for("ready to serve client requests");
        assert!(line.starts_with("{\"level\":\"info\",\"ts\":\""), "{line}");
        process.signal(signal);
        assert!(process.child.wait().unwrap().success(), "{signal}");
        process.wait_for("closed eddy server");
    }
}

#[test]
fn an_idle_client_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = eddy(dir.path(), FREE_PORTS);
    let line = process.wait_for("serving client traffic insecurely");
    let address = line.rsplit("\"address\":\"").next().unwrap().trim_end_matches("\"}");
    process.wait_for("ready to serve client requests");
    let _idle = std::net::TcpStream::connect(address).unwrap();
    let began = std::time::Instant::now();
    process.signal("TERM");
    assert!(process.child.wait().unwrap().success());
    assert!(began.elapsed().as_secs() < 3, "took {:?}", began.elapsed());
}

#[test]
fn what_keeps_it_from_starting_is_said_and_the_exit_code_tells() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("http://{}", taken.local_addr().unwrap());
    let in_use = [&format!("--listen-client-urls={taken}"), FREE_PORTS[1], FREE_PORTS[2]];
    for (args, code, text) in [
        (&["--no-such-flag"][..], 2, "unexpected argument '--no-such-flag'"),
        (&["--max-txn-ops=x"], 2, "flag --max-txn-ops"),
        (&["--listen-client-urls=http://127.0.0.1:0"], 1, "--advertise-client-urls is required"),
        (&["--config-file=nowhere.yml"], 1, "open nowhere.yml"),
        (&in_use, 1, "Address already in use"),
        (&["--log-outputs=/nowhere/log"], 1, "open log output"),
    ] {
        let mut process = eddy(dir.path(), args);
        process.wait_for(text);
        assert_eq!(process.child.wait().unwrap().code(), Some(code), "{args:?}");
    }
}

/// The allocator reads this when a program begins. So the process begins its program twice, unless the variable is set.
#[test]
fn memory_goes_back_at_once_unless_the_environment_says_otherwise() {
    const DELAY: &str = "MIMALLOC_PURGE_DELAY";
    for (environment, expected) in [(vec![], "0"), (vec![(DELAY, "100")], "100")] {
        let dir = tempfile::tempdir().unwrap();
        let process = eddy_in(&environment, dir.path(), FREE_PORTS);
        process.wait_for("ready to serve");
        let found = std::fs::read_to_string(format!("/proc/{}/environ", process.child.id())).unwrap();
        let delay = found.split('\0').find_map(|variable| variable.strip_prefix(DELAY)?.strip_prefix('='));
        assert_eq!(delay, Some(expected));
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.child.id())).unwrap();
        assert_eq!(name, "eddy\n");
    }
}
