//! All results in one SQLite file. An experiment is written in one transaction when it has ended. So an interrupted run
//! leaves only whole experiments, and the next run goes on from there.

use std::path::Path;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rusqlite::{Connection, OptionalExtension, params};

use crate::load::recorder::{Step, histogram};
use crate::scenario::Cell;

/// Version of the tables below. A file of another version is not touched.
const VERSION: i64 = 1;

const TABLES: &str = "
CREATE TABLE scenario (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL                 -- the TOML, as it was run
);
CREATE TABLE experiment (
    id INTEGER PRIMARY KEY,
    scenario TEXT NOT NULL REFERENCES scenario (name),
    cell TEXT NOT NULL,                -- what was fixed, as JSON
    seed INTEGER NOT NULL,
    began TEXT NOT NULL,               -- UTC
    seconds REAL NOT NULL,
    version TEXT NOT NULL,             -- what the program says of itself
    source TEXT NOT NULL,              -- the commit of the checkout that the lab ran in
    machine TEXT NOT NULL,
    load REAL NOT NULL,                -- the machine's load average before it: what others did
    error TEXT                         -- why it has no measurements
);
CREATE TABLE metric (
    experiment INTEGER NOT NULL REFERENCES experiment (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    node INTEGER,                      -- NULL: of all together
    value REAL NOT NULL
);
CREATE TABLE latency (
    experiment INTEGER NOT NULL REFERENCES experiment (id) ON DELETE CASCADE,
    operation TEXT NOT NULL,
    us INTEGER NOT NULL,
    count INTEGER NOT NULL
);
CREATE TABLE step (
    experiment INTEGER NOT NULL REFERENCES experiment (id) ON DELETE CASCADE,
    node INTEGER NOT NULL,
    number INTEGER NOT NULL,
    done INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    latency_us_sum INTEGER NOT NULL,
    latency_us_max INTEGER NOT NULL
);
CREATE INDEX metric_of ON metric (experiment);
CREATE INDEX latency_of ON latency (experiment);
CREATE INDEX step_of ON step (experiment);
";

/// What one experiment measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Name, node (none: of all together), value.
    pub metrics: Vec<(String, Option<usize>, f64)>,
    /// Latencies by operation, microseconds.
    pub latencies: Vec<(String, Histogram<u64>)>,
    /// For each node, its time line.
    pub steps: Vec<Vec<Step>>,
}

/// Where an experiment comes from, for those who want to repeat or doubt it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origin {
    /// Scenario.
    pub scenario: String,
    /// Seed of its randomness.
    pub seed: u64,
    /// When it began, UTC.
    pub began: String,
    /// How long it took, with start and stop of the cluster.
    pub seconds: f64,
    /// What the program says of itself.
    pub version: String,
    /// The commit of the checkout that the lab ran in.
    pub source: String,
    /// Cores, memory, kernel.
    pub machine: String,
    /// The machine's load average before.
    pub load: f64,
}

/// An experiment that has its measurements.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its number in the file.
    pub id: i64,
    /// What was fixed.
    pub cell: Cell,
    /// Where it comes from.
    pub origin: Origin,
    /// What it measured.
    pub measured: Measured,
}

impl Experiment {
    /// A metric of all nodes together.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.measured.metrics.iter().find(|(n, node, _)| n == name && node.is_none()).map(|(_, _, value)| *value)
    }
}

/// The file of results.
pub struct Results {
    file: Connection,
}

impl Results {
    /// Opens a file of results, or makes one.
    ///
    /// # Errors
    /// When it is no such file, or of another version.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = Connection::open(path).with_context(|| format!("open {name}"))?;
        file.pragma_update(None, "foreign_keys", true)?;
        let version: i64 = file
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .with_context(|| format!("{name} is no file of results"))?;
        match version {
            VERSION => {}
            0 => {
                let tables: i64 = file.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
                if tables > 0 {
                    bail!("{name} is a SQLite file of something else");
                }
                file.execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;"))?;
            }
            other => bail!("{name} has version {other} of the tables, this lab knows {VERSION}: take another file"),
        }
        Ok(Self { file })
    }

    /// Notes a scenario that is about to run.
    ///
    /// # Errors
    /// When the file holds experiments of another scenario by that name.
    pub fn scenario(&mut self, name: &str, text: &str) -> Result<()> {
        let known: Option<String> =
            self.file.query_row("SELECT text FROM scenario WHERE name = ?", [name], |row| row.get(0)).optional()?;
        match known {
            Some(known) if known == text => return Ok(()),
            Some(_) if self.experiments_of(name)? > 0 => bail!(
                "the results hold experiments of another scenario '{name}': give the changed one a new name, or take \
                 another file with --results"
            ),
            _ => {}
        }
        self.file.execute("INSERT OR REPLACE INTO scenario (name, text) VALUES (?, ?)", [name, text])?;
        Ok(())
    }

    fn experiments_of(&self, name: &str) -> Result<i64> {
        Ok(self.file.query_row("SELECT count(*) FROM experiment WHERE scenario = ?", [name], |row| row.get(0))?)
    }

    /// All scenarios, with their text.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn scenarios(&self) -> Result<Vec<(String, String)>> {
        let mut query = self.file.prepare("SELECT name, text FROM scenario ORDER BY rowid")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// How many experiments of a cell are finished, and how many have failed.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn finished(&self, scenario: &str, cell: &Cell) -> Result<(u32, u32)> {
        let query = "SELECT count(*) - count(error), count(error) FROM experiment WHERE scenario = ? AND cell = ?";
        let cell = serde_json::to_string(cell)?;
        Ok(self.file.query_row(query, [scenario, &cell], |row| Ok((row.get(0)?, row.get(1)?)))?)
    }

    /// Keeps an experiment, or why it has no measurements. Returns its number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep(&mut self, cell: &Cell, origin: &Origin, measured: Result<&Measured, &str>) -> Result<i64> {
        let all = self.file.transaction()?;
        all.execute(
            "INSERT INTO experiment (scenario, cell, seed, began, seconds, version, source, machine, load, error)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                origin.scenario,
                serde_json::to_string(cell)?,
                // SQLite's integers have a sign; the bits stay the same.
                origin.seed.cast_signed(),
                origin.began,
                origin.seconds,
                origin.version,
                origin.source,
                origin.machine,
                origin.load,
                measured.err(),
            ],
        )?;
        let id = all.last_insert_rowid();
        if let Ok(measured) = measured {
            let mut metric = all.prepare("INSERT INTO metric VALUES (?, ?, ?, ?)")?;
            for (name, node, value) in measured.metrics.iter().filter(|(_, _, value)| value.is_finite()) {
                metric.execute(params![id, name, node.map(|n| n as i64), value])?;
            }
            let mut latency = all.prepare("INSERT INTO latency VALUES (?, ?, ?, ?)")?;
            for (operation, histogram) in &measured.latencies {
                for bar in histogram.iter_recorded() {
                    let (us, count) = (bar.value_iterated_to(), bar.count_at_value());
                    latency.execute(params![id, operation, us.cast_signed(), count.cast_signed()])?;
                }
            }
            let mut step = all.prepare("INSERT INTO step VALUES (?, ?, ?, ?, ?, ?, ?)")?;
            for (node, steps) in measured.steps.iter().enumerate() {
                for (number, s) in steps.iter().enumerate() {
                    let numbers = [s.done, s.failed, s.latency_us_sum, s.latency_us_max].map(u64::cast_signed);
                    step.execute(params![
                        id,
                        node as i64,
                        number as i64,
                        numbers[0],
                        numbers[1],
                        numbers[2],
                        numbers[3]
                    ])?;
                }
            }
        }
        all.commit()?;
        Ok(id)
    }

    /// All experiments of a scenario that have measurements.
    ///
    /// # Errors
    /// When the file cannot be read, or a cell in it is none.
    pub fn experiments(&self, scenario: &str) -> Result<Vec<Experiment>> {
        let mut query = self.file.prepare(
            "SELECT id, cell, seed, began, seconds, version, source, machine, load FROM experiment
             WHERE scenario = ? AND error IS NULL ORDER BY id",
        )?;
        let rows = query.query_map([scenario], |row| {
            let origin = Origin {
                scenario: scenario.to_owned(),
                seed: row.get::<_, i64>(2)?.cast_unsigned(),
                began: row.get(3)?,
                seconds: row.get(4)?,
                version: row.get(5)?,
                source: row.get(6)?,
                machine: row.get(7)?,
                load: row.get(8)?,
            };
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, origin))
        })?;
        let mut experiments = Vec::new();
        for row in rows {
            let (id, cell, origin) = row?;
            let cell = serde_json::from_str(&cell).with_context(|| format!("the cell of experiment {id}"))?;
            experiments.push(Experiment { id, cell, origin, measured: self.measured(id)? });
        }
        Ok(experiments)
    }

    /// Cells that failed, with what the last failure said.
    ///
    /// # Errors
    /// When the file cannot be read, or a cell in it is none.
    pub fn failures(&self, scenario: &str) -> Result<Vec<(Cell, String)>> {
        let mut query = self
            .file
            .prepare("SELECT cell, error FROM experiment WHERE scenario = ? AND error IS NOT NULL ORDER BY id")?;
        let rows = query.query_map([scenario], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
        rows.map(|row| row.map_err(anyhow::Error::from).and_then(|(cell, e)| Ok((serde_json::from_str(&cell)?, e))))
            .collect()
    }

    fn measured(&self, id: i64) -> Result<Measured> {
        let mut measured = Measured::default();
        let mut query = self.file.prepare("SELECT name, node, value FROM metric WHERE experiment = ?")?;
        let metrics = query
            .query_map([id], |row| Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?.map(|n| n as usize), row.get(2)?)))?;
        measured.metrics = metrics.collect::<Result<_, _>>()?;
        let mut query = self.file.prepare("SELECT operation, us, count FROM latency WHERE experiment = ?")?;
        let mut rows = query.query([id])?;
        while let Some(row) = rows.next()? {
            let (operation, us, count): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if measured.latencies.last().is_none_or(|(last, _)| *last != operation) {
                measured.latencies.push((operation, histogram()));
            }
            if let Some((_, histogram)) = measured.latencies.last_mut() {
                histogram.record_n(us.cast_unsigned(), count.cast_unsigned())?;
            }
        }
        let mut query = self.file.prepare(
            "SELECT node, done, failed, latency_us_sum, latency_us_max FROM step WHERE experiment = ? ORDER BY node, number",
        )?;
        let mut rows = query.query([id])?;
        while let Some(row) = rows.next()? {
            let node = row.get::<_, i64>(0)? as usize;
            measured.steps.resize(measured.steps.len().max(node + 1), Vec::new());
            let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
            measured.steps[node].push(Step {
                done: number(1)?,
                failed: number(2)?,
                latency_us_sum: number(3)?,
                latency_us_max: number(4)?,
            });
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests;
