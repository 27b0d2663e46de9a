//! What befalls disks: one is empty, or an older copy of itself.

use std::collections::BTreeSet;

use bytes::Bytes;
use eddy_crdt::{Dot, Head, Replica};

use super::host::{Host, Life};
use super::world::{Outcome, World};
use crate::support::checks::ensure;
use crate::support::disk::Image;

impl World {
    pub fn wipe(&mut self, host: usize, back_ms: u64) {
        if self.hosts.get(host).is_none_or(|place| matches!(place.life, Life::Gone)) {
            return;
        }
        self.crash(host, back_ms);
        self.disk_faults = true;
        self.history.lost_disk(host);
        self.coverage.count("wiped disks");
        self.count_losses(host);
        let place = &mut self.hosts[host];
        place.lost = true;
        place.disk.replace(Image::default());
        place.copied = false;
        (place.expected, place.instead) = (None, None);
        place.told.clear();
    }

    /// Counts where a disk is lost while another is, or while the same is once more.
    fn count_losses(&mut self, host: usize) {
        let is_lost = |place: &Host| place.lost || matches!(place.life, Life::Fetching(_));
        if self.hosts.iter().enumerate().any(|(other, place)| other != host && is_lost(place)) {
            self.coverage.count("several disks lost at once");
        }
        if self.hosts[host].lost {
            self.coverage.count("disks lost twice");
        }
    }

    pub fn backup(&mut self, host: usize) {
        let Some(place) = self.hosts.get_mut(host) else { return };
        if let Life::Up(up) = &place.life {
            place.backup = Some((place.disk.durable.clone(), up.durable.clone()));
        }
    }

    /// `seen`: whether it can tell that its disk is a copy, or has to hear it from the others.
    pub fn restore(&mut self, host: usize, back_ms: u64, seen: bool) {
        let Some(place) = self.hosts.get(host) else { return };
        let Some((image, state)) = place.backup.clone().filter(|_| !matches!(place.life, Life::Gone)) else { return };
        self.crash(host, back_ms);
        self.disk_faults = true;
        self.history.copied_disk(host);
        self.coverage.count("restored disks");
        self.count_losses(host);
        if let Ok(head) = Head::decode(image.head.as_ref().unwrap_or(&Bytes::new())) {
            let origin = head.identity.origin();
            self.ledger.forks(origin, state.vector.get(origin) + 1);
        }
        let place = &mut self.hosts[host];
        place.disk.replace(image);
        (place.expected, place.instead) = (Some(state), None);
        place.told.clear();
        (place.copied, place.lost) = (seen, true);
    }

    /// Whether one that is to begin anew has a disk, and the other members that it knows have nothing to give: they are there
    /// and wait as well, or, where it is patient no more, are not there.
    pub fn knows_best(&self, host: usize, is_patient: bool) -> bool {
        let Life::Fetching(fetch) = &self.hosts[host].life else { return false };
        let Some(old) = &fetch.old else { return false };
        let known = old.members().filter(|m| !m.removed && m.id != old.identity().replica);
        let place = |id| self.hosts.iter().position(|other| other.id == id);
        let is_there = |other: &usize| {
            let runs = !matches!(self.hosts[*other].life, Life::Down | Life::Gone);
            runs && self.is_linked(host, *other) && self.blocked.is_open(host, *other)
        };
        let others: Vec<Option<usize>> = known.map(|m| place(m.id).filter(is_there)).collect();
        let waits = |other: usize| matches!(self.hosts[other].life, Life::Fetching(_));
        others.into_iter().all(|other| other.map_or(!is_patient, waits))
    }

    /// Whether one that begins anew may give up an entry. Its maker was removed, or nobody there knows its birth; of a birth
    /// that is forgotten, only a copy of a disk may hold more than all have, or one that was no member to the others.
    pub fn check_forsaken(&mut self, host: usize, installed: &Replica, dot: Dot) -> Outcome {
        let is_forgotten = installed.vector().has_forgotten(dot.origin);
        let is_unknown = installed.vector().get(dot.origin) == 0;
        self.coverage.count(if is_forgotten {
            "writes of forgotten births told"
        } else {
            "writes of lost births told"
        });
        // Who knew that it was added has lost that with its disk: the others forgot births without asking for what it has.
        let own = installed.identity().origin();
        let is_before = |dot: Dot| dot.origin.replica == own.replica && dot.origin != own;
        let was_no_member = !installed.vector().iter().any(is_before);
        let may = self.removals || is_unknown || (is_forgotten && (self.hosts[host].lost || was_no_member));
        ensure!(may, "{dot:?} is given up, and nobody was removed");
        Ok(())
    }

    /// What one that begins anew had on its disk it has after that too, unless it said that it gave it up. It leaves out
    /// only what another host still has, whose write it is.
    pub fn check_kept(&self, host: usize, after: &BTreeSet<Bytes>) -> Outcome {
        let place = &self.hosts[host];
        let before = place.marks();
        let others = || self.hosts.iter().filter(|other| other.place != host);
        let is_kept =
            |mark: &Bytes| place.forsaken.contains(mark) || others().any(|other| other.marks().contains(mark));
        let lost = before.difference(after).find(|mark| !is_kept(mark));
        ensure!(lost.is_none(), "{lost:?}, which {} had on disk, is lost as it begins anew", place.id);
        Ok(())
    }
}
