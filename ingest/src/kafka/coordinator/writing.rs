//! What a group wants written down of itself: one write at a time, of the group as it is then.

/// Something to be written down: the members, or that there are none.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) number: u64,
    pub(super) members: Option<Vec<u8>>,
}

/// How far a group is written down.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// How often it was to be written down, and up to which of these it was.
    wanted: u64,
    written: u64,
    under_way: Option<u64>,
}

impl Writing {
    /// It has changed: the number of the write that has the change.
    pub(super) const fn want(&mut self) -> u64 {
        self.wanted += 1;
        self.wanted
    }

    /// The write that has all changes up to now.
    pub(super) const fn wanted(&self) -> u64 {
        self.wanted
    }

    /// The last write that is over.
    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    /// Whether there is something to be written, and nothing under way.
    pub(super) const fn is_due(&self) -> bool {
        self.under_way.is_none() && self.written != self.wanted
    }

    /// Whether nothing is under way, or to be written.
    pub(super) const fn is_settled(&self) -> bool {
        self.under_way.is_none() && self.written == self.wanted
    }

    /// The group as it is now is about to be written.
    pub(super) const fn begin(&mut self, members: Option<Vec<u8>>) -> Store {
        self.under_way = Some(self.wanted);
        Store {
            number: self.wanted,
            members,
        }
    }

    /// The write that was under way is over.
    pub(super) const fn end(&mut self, number: u64) {
        self.under_way = None;
        self.written = number;
    }
}
