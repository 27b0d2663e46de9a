//! Records of the journal that lost a change.

/// Records that lost a change since the last sweep.
#[derive(Clone, Debug, Default)]
pub struct Dead {
    /// Records in which a value is gone.
    pub(crate) changes: Vec<u64>,
    /// Records in which a tombstone is gone.
    pub(crate) graves: Vec<u64>,
}

impl Dead {
    /// A value in that record is gone.
    pub fn change(&mut self, number: u64) {
        self.changes.push(number);
    }

    /// A tombstone in that record is gone.
    pub fn grave(&mut self, number: u64) {
        self.graves.push(number);
    }

    /// A value in that record is gone, or a tombstone.
    pub fn add(&mut self, number: u64, tombstone: bool) {
        if tombstone { self.grave(number) } else { self.change(number) }
    }
}
