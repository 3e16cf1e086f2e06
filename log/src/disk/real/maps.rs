//! How many maps of files there are, and which one is given up for another.
//!
//! A process may have `vm.max_map_count` maps, and a log has more segments than that. So a file keeps the map that was last
//! made of it only as long as there are few: as with descriptors ([`super::descriptors`]) they stand in a round, and whoever
//! needs one more gives up the first that was not used since it was last passed and that nobody holds. The memory is
//! unmapped once the last holder has dropped it.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::mmap::Map;

/// What Linux allows where it does not say.
const DEFAULT_SYSTEM_LIMIT: usize = 65_530;
const MIN_MAPS: usize = 64;
/// So many are looked at for one to give up: with all of them in use there will be more than the limit.
const MOST_LOOKS: usize = 128;

/// The maps of a disk's files.
#[derive(Debug)]
pub(super) struct Maps {
    limit: usize,
    /// Those that are held although they were given up among them.
    live: Arc<AtomicUsize>,
    round: Mutex<Round>,
}

#[derive(Debug, Default)]
struct Round {
    slots: Vec<Arc<MapSlot>>,
    /// Where to go on.
    hand: usize,
}

/// Where a file keeps its map. A slot's lock comes before that of the round.
#[derive(Debug, Default)]
pub(super) struct MapSlot {
    map: Mutex<Option<Map>>,
    /// Set by every use, taken away by whoever looks for a map to give up.
    used: AtomicBool,
    /// Where it is in the round.
    place: AtomicUsize,
}

/// A quarter of what the system allows a process now; the rest is for those that are held, and for others.
pub(super) fn default_limit() -> usize {
    fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(DEFAULT_SYSTEM_LIMIT)
        .max(4 * MIN_MAPS)
        / 4
}

impl Maps {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            live: Arc::default(),
            round: Mutex::default(),
        }
    }

    /// Counts the maps that there are.
    pub(super) fn live_count(&self) -> &Arc<AtomicUsize> {
        &self.live
    }

    /// Lends a file's map for its first `readable` bytes, and has `make` make one if there is none that is long enough.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn lend(
        &self,
        slot: &Arc<MapSlot>,
        readable: usize,
        make: impl Fn() -> io::Result<Map>,
    ) -> io::Result<Map> {
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        let mut kept = slot.map.lock();
        if let Some(map) = kept.as_ref().filter(|map| map.capacity() >= readable) {
            return Ok(map.lend(readable));
        }
        let made = self.retry(make)?;
        let lent = made.lend(readable);
        let short = kept.replace(made);
        let mut round = self.round.lock();
        if short.is_none() {
            round.add(slot);
        }
        while self.live.load(Ordering::Relaxed) > self.limit && round.give_up_one(MOST_LOOKS) {}
        Ok(lent)
    }

    /// Makes a map, and gives up others as long as the system has no more.
    fn retry(&self, make: impl Fn() -> io::Result<Map>) -> io::Result<Map> {
        loop {
            match make() {
                Err(error) if is_lack(&error) && self.round.lock().give_up_one(usize::MAX) => {}
                made => return made,
            }
        }
    }

    /// Gives up a file's map for good.
    pub(super) fn forget(&self, slot: &Arc<MapSlot>) {
        let map = slot.map.lock().take();
        if map.is_some() {
            let mut round = self.round.lock();
            round.remove(slot.place.load(Ordering::Relaxed), slot);
        }
    }
}

fn is_lack(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw_os_error) == Some(Errno::NOMEM)
}

impl MapSlot {
    /// Gives its map up, unless somebody holds it or has used it since this was last asked.
    fn give_up(&self) -> Option<Map> {
        // Whoever has the lock uses the map.
        let mut map = self.map.try_lock()?;
        let is_held = map.as_ref().is_some_and(Map::is_lent);
        if self.used.swap(false, Ordering::Relaxed) || is_held {
            return None;
        }
        map.take()
    }
}

impl Round {
    fn add(&mut self, slot: &Arc<MapSlot>) {
        slot.place.store(self.slots.len(), Ordering::Relaxed);
        self.slots.push(Arc::clone(slot));
    }

    /// Takes out the slot at `place`, if it is this one.
    fn remove(&mut self, place: usize, slot: &Arc<MapSlot>) {
        let is_there = |there: &&Arc<MapSlot>| Arc::ptr_eq(there, slot);
        if self.slots.get(place).filter(is_there).is_some() {
            self.slots.swap_remove(place);
            if let Some(moved) = self.slots.get(place) {
                moved.place.store(place, Ordering::Relaxed);
            }
        }
    }

    /// Gives up one map, looking at no more than so many; whether there was one.
    fn give_up_one(&mut self, most_looks: usize) -> bool {
        // Twice round: the first time may only have taken marks away.
        for _ in 0..most_looks.min(2 * self.slots.len()) {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let Some(slot) = self.slots.get(self.hand).map(Arc::clone) else {
                return false;
            };
            if slot.give_up().is_some() {
                self.remove(self.hand, &slot);
                return true;
            }
            self.hand += 1;
        }
        false
    }
}
