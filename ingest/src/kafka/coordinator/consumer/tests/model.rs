//! Members that join, leave, lose answers, fall silent and come back, over topics that grow and a disk that fails, by chance: no
//! two that could know themselves to be members ever have the same partition, and they agree once they behave.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::*;

/// Numbers by chance, the same ones for the same seed.
pub(super) struct Chance {
    seed: u64,
    drawn: u64,
}

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.drawn += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, self.drawn).hash(&mut hasher);
        u32::try_from(hasher.finish() % u64::from(end.max(1))).unwrap_or(0)
    }

    /// A place in what is so long.
    pub(super) fn place(&mut self, length: usize) -> usize {
        self.below(u32::try_from(length).unwrap_or(u32::MAX)) as usize
    }
}

/// A client as Kafka's are: it has what it was told, gives up what it is not to have, and says so.
struct Client {
    id: String,
    /// It takes its time to give up what it has to, and says nothing of what it has meanwhile.
    is_slow: bool,
    instance: Option<&'static str>,
    epoch: i32,
    has: Partitions,
    /// What it was told to have, and takes over with its next step.
    told: Option<Partitions>,
    says_all: bool,
    is_busy: bool,
    /// When it has to take itself for put out.
    until: Instant,
}

impl Client {
    fn next_beat(&self) -> Beat {
        let beat = match self.epoch {
            0 => joins(&self.id, &["t", "u"]),
            _ if self.says_all => Beat {
                owned: Some(self.has.clone()),
                ..joins(&self.id, &["t", "u"])
            },
            _ if self.is_busy => beats(&self.id, self.epoch),
            _ => owns(&self.id, self.epoch, &self.has),
        };
        Beat {
            epoch: self.epoch,
            instance_id: self.instance.map(Name::from),
            ..beat
        }
    }

    fn hears(&mut self, now: Instant, told: Told) {
        match told {
            Ok(beaten) => {
                self.until = now + SESSION;
                self.epoch = beaten.epoch;
                self.says_all = false;
                if let Some(assignment) = beaten.assignment {
                    self.told = Some(assignment);
                    self.is_busy = self.is_slow;
                } else {
                    self.is_busy = false;
                }
                if !self.is_busy
                    && let Some(told) = self.told.take()
                {
                    self.has = told;
                }
            }
            Err(failure) if failure.code == code::COORDINATOR_NOT_AVAILABLE => {
                self.says_all = true;
            }
            Err(_) => self.lose(),
        }
    }

    fn lose(&mut self) {
        self.epoch = 0;
        self.has.clear();
        self.told = None;
        self.says_all = false;
        self.is_busy = false;
    }
}

#[test]
fn nobody_has_what_another_has_and_all_agree_once_they_behave() {
    for seed in 0..400 {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut chance = Chance::new(seed);
    let mut bench = Bench::new(&[("t", 1, 3), ("u", 2, 1)]);
    let mut clients: Vec<Client> = Vec::new();
    for step in 0..150 {
        let what = format!("seed {seed}, step {step}");
        bench.pass(Duration::from_secs(u64::from(chance.below(8))));
        match chance.below(12) {
            0 if clients.len() < 4 => {
                let instance = (chance.below(2) == 0
                    && clients.iter().all(|one| one.instance.is_none()))
                .then_some("i");
                clients.push(Client {
                    id: format!("{seed}-{step}"),
                    instance,
                    epoch: 0,
                    has: Partitions::new(),
                    told: None,
                    says_all: false,
                    is_busy: false,
                    is_slow: chance.below(2) == 0,
                    until: bench.now,
                });
            }
            1 if !clients.is_empty() => {
                // It leaves, or goes without a word.
                let gone = clients.remove(chance.place(clients.len()));
                if chance.below(2) == 0 {
                    let leaving = match gone.instance {
                        Some(_) if chance.below(2) == 0 => WILL_BE_BACK,
                        _ => LEAVES,
                    };
                    drop(bench.send(&Beat {
                        epoch: leaving,
                        ..gone.next_beat()
                    }));
                    bench.write(chance.below(8) > 0);
                }
            }
            2 => {
                let (id, count) = bench.topics.find("t").expect("the topic");
                bench.topics.set("t", id.0, (count + 1).min(9));
            }
            3 if chance.below(3) == 0 => bench.topics.set("u", 100 + step, 1 + chance.below(3)),
            4 if chance.below(3) == 0 => bench.restart(),
            5 if chance.below(6) == 0 => {
                bench.group.expel(bench.now);
                bench.write(true);
                bench.write(true);
            }
            _ if !clients.is_empty() => {
                let place = chance.place(clients.len());
                let mut told = bench.send(&clients[place].next_beat());
                if chance.below(10) > 0 {
                    bench.write(chance.below(10) > 0);
                    bench.write(chance.below(10) > 0);
                }
                let client = &mut clients[place];
                match (told.try_recv(), chance.below(10)) {
                    // The answer is lost.
                    (_, 0) | (Err(_), _) => client.says_all = true,
                    (Ok(told), _) => client.hears(bench.now, told),
                }
            }
            _ => {}
        }
        for client in &mut clients {
            if client.until <= bench.now {
                client.lose();
            }
        }
        apart(&bench, &clients, &what);
        assert_sound(&bench.group);
    }
    // All behave, from where they are. Whoever went without a word is out with its session.
    for round in 0..24 {
        bench.pass(Duration::from_secs(3));
        bench.write(true);
        for place in 0..clients.len() {
            let mut told = bench.send(&clients[place].next_beat());
            bench.write(true);
            bench.write(true);
            clients[place].hears(bench.now, told.try_recv().expect("an answer"));
            apart(&bench, &clients, &format!("seed {seed}, round {round}"));
        }
    }
    if clients.is_empty() {
        return;
    }
    assert_eq!(bench.group.state(), "Stable", "seed {seed}");
    let loads: BTreeSet<_> = clients.iter().map(|one| one.has.len()).collect();
    let (least, most) = (loads.first().unwrap(), loads.last().unwrap());
    assert!(most - least <= 1, "seed {seed}: {loads:?}");
    let all = bench.topics.topics.values().map(|(_, count)| *count);
    let has = clients.iter().map(|one| one.has.len()).sum::<usize>();
    assert_eq!(has, all.sum::<u32>() as usize, "seed {seed}");
}

/// No partition is two clients', unless one was put out and has not heard of it.
fn apart(bench: &Bench, clients: &[Client], what: &str) {
    let mut held = BTreeSet::new();
    for client in clients {
        // One that was put out and has not heard of it learns that with its next heartbeat.
        let Some(member) = bench.group.members.get(&*client.id) else {
            continue;
        };
        assert!(client.epoch <= member.epoch, "{what}: told and not written");
        for part in &client.has {
            assert!(held.insert(*part), "{what}: {part:?} is two members'");
        }
    }
}
