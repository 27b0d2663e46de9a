//! `examples/client.rs` does what it says: run as a reader of the README runs it, against replicas that stop.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::Cluster;

/// Longer than any pause of the client, a build of it included.
const PATIENCE: Duration = Duration::from_secs(300);

/// The example as a process of its own, and what it printed.
struct Client {
    process: Child,
    lines: Receiver<String>,
    printed: Vec<Line>,
}

/// A line that the client printed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Acknowledged(Write),
    Event(Write),
    Found,
    Broken,
    Moved,
    Compacted,
    Other(String),
}

/// A key with the value that it got at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    key: String,
    value: String,
    revision: i64,
}

impl Line {
    fn of(line: String) -> Result<Line> {
        let words: Vec<&str> = line.split(' ').collect();
        let write = |key: &str, value: &str, revision: &str| -> Result<Write> {
            Ok(Write { key: key.to_owned(), value: value.to_owned(), revision: revision.parse()? })
        };
        Ok(match words[..] {
            ["acknowledged", key, value, "at", revision] => Line::Acknowledged(write(key, value, revision)?),
            ["event", key, value, "at", revision] => Line::Event(write(key, value, revision)?),
            ["found", ..] => Line::Found,
            ["broken", ..] => Line::Broken,
            ["move", ..] => Line::Moved,
            ["compacted", ..] => Line::Compacted,
            _ => Line::Other(line),
        })
    }
}

impl Client {
    fn start(endpoints: &[String]) -> Result<Client> {
        let mut process = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--locked", "--example", "client", "--"])
            .args(endpoints)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().context("its output")?);
        let (send, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Ok(Client { process, lines, printed: Vec::new() })
    }

    /// Reads on until this many lines are such.
    fn read_until(&mut self, count: usize, what: &str, is: impl Fn(&Line) -> bool) -> Result<()> {
        let mut seen = 0;
        while seen < count {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                bail!("{seen} times {what}, not {count}; it printed {:#?}", self.printed)
            };
            let line = Line::of(line)?;
            seen += usize::from(is(&line));
            self.printed.push(line);
        }
        Ok(())
    }

    fn read_acknowledgements(&mut self, count: usize) -> Result<()> {
        self.read_until(count, "acknowledged", |line| matches!(line, Line::Acknowledged(_)))
    }

    /// Reads on until the event of the last acknowledged put.
    fn read_its_last_event(&mut self) -> Result<()> {
        let last = acknowledged(&self.printed).pop().context("no put was acknowledged")?;
        let seen = |line: &Line| matches!(line, Line::Event(event) if event.revision >= last.revision);
        if self.printed.iter().any(seen) { Ok(()) } else { self.read_until(1, "the last event", seen) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Fails only when the process is gone already.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn acknowledged(lines: &[Line]) -> Vec<Write> {
    lines
        .iter()
        .filter_map(|line| if let Line::Acknowledged(write) = line { Some(write.clone()) } else { None })
        .collect()
}

fn events(lines: &[Line]) -> Vec<Write> {
    lines.iter().filter_map(|line| if let Line::Event(write) = line { Some(write.clone()) } else { None }).collect()
}

/// Checks that the puts are numbered without a gap, and that each acknowledged one was seen as an event, once.
fn all_puts_were_seen(lines: &[Line]) -> Result<()> {
    let (puts, events) = (acknowledged(lines), events(lines));
    for pair in puts.windows(2) {
        let [before, after] = [pair[0].value.parse::<u64>()?, pair[1].value.parse::<u64>()?];
        ensure!(before + 1 == after, "put {after} follows {before}");
    }
    let last = events.last().context("no event")?.revision;
    for put in puts.iter().filter(|put| put.revision <= last) {
        ensure!(events.iter().filter(|event| *event == put).count() == 1, "{put:?} is not an event, once: {lines:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_example_misses_nothing_while_its_replica_is_killed_and_started_again() -> Result<()> {
    let mut cluster = Cluster::start(1).await?;
    let mut client = Client::start(&[cluster.replicas[0].server.url()])?;
    let mut others = Vec::new();
    for round in 0..3 {
        client.read_acknowledgements(5)?;
        cluster.replicas[0].server.kill()?;
        client.read_until(1, "broken", |line| *line == Line::Broken)?;
        cluster.replicas[0].server.restart().await?;
        // Written while the client is most likely still away.
        others.push(cluster.replicas[0].put("example/other", &round.to_string()).await?);
    }
    client.read_acknowledgements(5)?;
    client.read_its_last_event()?;

    all_puts_were_seen(&client.printed)?;
    let revisions: Vec<i64> = events(&client.printed).iter().map(|event| event.revision).collect();
    let whole: Vec<i64> = (0..).map(|n| revisions[0] + n).take(revisions.len()).collect();
    ensure!(revisions == whole, "the only keys are watched, so revisions have no hole: {revisions:?}");
    ensure!(others.iter().all(|revision| revisions.contains(revision)), "{others:?} are among {revisions:?}");
    ensure!(!client.printed.contains(&Line::Compacted), "at the same replica nothing is listed again");
    Ok(())
}

#[tokio::test]
async fn the_example_moves_to_another_replica_and_lists_again_there() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let [first, second] = [&cluster.replicas[0], &cluster.replicas[1]];
    let mut client = Client::start(&[first.server.url(), second.server.url()])?;
    client.read_acknowledgements(12)?; // each of the ten keys
    client.read_its_last_event()?;
    // It answers nothing and closes nothing, as a machine that lost its power.
    first.server.signal("STOP")?;
    client.read_until(1, "moved", |line| *line == Line::Moved)?;
    let moved = client.printed.len();
    client.read_acknowledgements(12)?;
    client.read_its_last_event()?;
    first.server.signal("CONT")?;

    let (before, after) = client.printed.split_at(moved);
    ensure!(!before.contains(&Line::Compacted), "{before:#?}");
    all_puts_were_seen(before)?;
    // What was put there before the client listed is in the list, and no event.
    let listed_at = |line: &Line| match line {
        Line::Other(text) => text.strip_prefix("listed 10 keys at ")?.parse::<i64>().ok(),
        _ => None,
    };
    let listed_at = after.iter().find_map(listed_at).context("it lists again")?;
    let in_list = |line: &&Line| matches!(line, Line::Acknowledged(write) if write.revision <= listed_at);
    let since: Vec<Line> = after.iter().filter(|line| !in_list(line)).cloned().collect();
    all_puts_were_seen(&since)?;
    let compacted =
        after.iter().position(|line| *line == Line::Compacted).context("a foreign revision is compacted")?;
    let listed = after.iter().position(|line| matches!(line, Line::Other(text) if text.starts_with("listed 10 keys")));
    let listed = listed.context("it lists again")?;
    let event = after.iter().position(|line| matches!(line, Line::Event(_))).context("an event")?;
    ensure!(compacted < listed && listed < event, "{after:#?}");
    let revisions: Vec<i64> = events(after).iter().map(|event| event.revision).collect();
    ensure!(revisions.is_sorted_by(|before, after| before < after), "{revisions:?}");

    // What the first acknowledged and could not tell before it stopped was older, or arrives now: both end the same.
    drop(client);
    cluster.settled().await
}
