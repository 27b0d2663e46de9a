//! What one experiment measures.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Axis, Disk, Scenario, System};

/// What one experiment measures: a scenario with every setting fixed.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Cell {
    /// The program.
    pub system: System,
    /// Nodes.
    pub nodes: usize,
    /// Where the data dirs lie.
    pub disk: Disk,
    /// Time added to every flush, milliseconds.
    pub flush_delay_ms: u32,
    /// Round trip between peers, milliseconds.
    pub round_trip_ms: f64,
    /// Clients of a closed loop, else 0.
    pub clients: usize,
    /// Operations per second of an open loop (or speed of a replay), else 0.
    pub rate: f64,
    /// Watchers.
    pub watchers: usize,
}

impl Cell {
    /// The value of a setting.
    pub fn on(&self, axis: Axis) -> f64 {
        match axis {
            Axis::Nodes => self.nodes as f64,
            Axis::Clients => self.clients as f64,
            Axis::Rate => self.rate,
            Axis::RoundTripMs => self.round_trip_ms,
            Axis::FlushDelayMs => f64::from(self.flush_delay_ms),
            Axis::Watchers => self.watchers as f64,
        }
    }

    /// The same for another program.
    pub fn of(&self, system: System) -> Self {
        Self { system, ..self.clone() }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} node{}", self.system.name(), self.nodes, if self.nodes == 1 { "" } else { "s" })?;
        if self.clients > 0 {
            write!(f, ", {} client{}", self.clients, if self.clients == 1 { "" } else { "s" })?;
        }
        if self.rate > 0.0 {
            write!(f, ", rate {}", self.rate)?;
        }
        if self.round_trip_ms > 0.0 {
            write!(f, ", round trip {} ms", self.round_trip_ms)?;
        }
        if self.flush_delay_ms > 0 {
            write!(f, ", flush +{} ms", self.flush_delay_ms)?;
        }
        if self.watchers > 0 {
            write!(f, ", {} watchers", self.watchers)?;
        }
        if self.disk == Disk::Tmpfs { write!(f, ", tmpfs") } else { Ok(()) }
    }
}

impl Scenario {
    /// All combinations of its settings.
    pub fn cells(&self) -> Vec<Cell> {
        let or = |list: &[f64]| if list.is_empty() { vec![0.0] } else { list.to_vec() };
        let clients = if self.load.clients.is_empty() { vec![0] } else { self.load.clients.clone() };
        let mut cells = Vec::new();
        for &nodes in &self.cluster.nodes {
            for &disk in &self.cluster.disk {
                for &flush_delay_ms in &self.cluster.flush_delay_ms {
                    for &round_trip_ms in &or(&self.network.round_trip_ms) {
                        for &clients in &clients {
                            for &rate in &or(&self.load.rate) {
                                for &watchers in &self.load.watchers {
                                    cells.extend(self.cluster.systems.iter().map(|&system| Cell {
                                        system,
                                        nodes,
                                        disk,
                                        flush_delay_ms,
                                        round_trip_ms,
                                        clients,
                                        rate,
                                        watchers,
                                    }));
                                }
                            }
                        }
                    }
                }
            }
        }
        cells
    }
}
