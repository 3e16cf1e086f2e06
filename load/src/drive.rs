//! Threads of a run: starts them at one moment, watches what they count, and collects what they found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::clock::{Timeline, nanoseconds, processor_time};
use crate::consume::{Consumed, Consumer};
use crate::error::LoadError;
use crate::produce::{Lane, Produced, Producer};
use crate::progress::{Progress, Standing};
use crate::shared::{Shared, Window};
use crate::stats::{Count, Counter, sum};

/// Between two looks at the counters.
const TICK_NS: u64 = 100_000_000;

/// What had been done at some time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    pub(crate) produced: Count,
    pub(crate) consumed: Count,
    pub(crate) processor: Duration,
}

/// What is to be done, and for how long.
pub(crate) struct Work<'a> {
    pub(crate) what: &'static str,
    pub(crate) warmup: Duration,
    /// Time after the warm-up; `None` if records bound the work.
    pub(crate) duration: Option<Duration>,
    pub(crate) timeout: Duration,
    /// Records that will be done in all, if that is known.
    pub(crate) total_records: Option<u64>,
    pub(crate) stop: &'a AtomicBool,
    /// By partition: the end, for those who read what is being written.
    pub(crate) ends: Vec<Arc<AtomicU64>>,
    /// By partition: where the records of this work begin.
    pub(crate) starts: &'a [u64],
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) produced: Vec<Produced>,
    pub(crate) consumed: Vec<Consumed>,
    /// At the end of the warm-up.
    pub(crate) from: Sample,
    /// At the end of the time; `None` if records bounded the work.
    pub(crate) until: Option<Sample>,
    pub(crate) samples: Vec<Sample>,
    /// Once everything was done.
    pub(crate) last: Sample,
}

enum Event {
    Produced(Result<Produced, LoadError>),
    Consumed(Result<Consumed, LoadError>),
}

/// A connection before its thread: everything but what all share.
pub(crate) type MakeProducer<'a> =
    Box<dyn for<'s> FnOnce(&'s Shared<'s>, &'s Counter) -> Producer<'s> + Send + 'a>;
pub(crate) type MakeConsumer<'a> =
    Box<dyn for<'s> FnOnce(&'s Shared<'s>, &'s Counter) -> Consumer<'s> + Send + 'a>;

/// Does the work.
///
/// # Errors
/// The first [`LoadError`] of any thread; the others end early then.
pub(crate) fn drive(
    work: &Work<'_>,
    producers: Vec<MakeProducer<'_>>,
    consumers: Vec<MakeConsumer<'_>>,
    progress: &mut dyn Progress,
) -> Result<Done, LoadError> {
    let counters = |count| (0..count).map(|_| Counter::default()).collect::<Vec<_>>();
    let (producing, consuming) = (counters(producers.len()), counters(consumers.len()));
    let from_ns = nanoseconds(work.warmup);
    let shared = Shared {
        timeline: Timeline::start(),
        window: Window {
            from_ns,
            until_ns: work
                .duration
                .map_or(u64::MAX, |duration| from_ns + nanoseconds(duration)),
        },
        timeout: work.timeout,
        stop: work.stop,
        failed: AtomicBool::new(false),
    };
    let mut watch = Watch {
        work,
        shared: &shared,
        producing: &producing,
        consuming: &consuming,
        left_to_produce: producers.len(),
        from: None,
        error: None,
        done: Done::default(),
    };
    let count = producers.len() + consumers.len();
    thread::scope(|scope| {
        let (sender, events) = mpsc::channel();
        // Readers first, so that the first records find them waiting.
        let readers = consumers
            .into_iter()
            .zip(&consuming)
            .map(|(make, counter)| {
                let shared = &shared;
                spawn(scope, &sender, "read", move || {
                    Event::Consumed(make(shared, counter).run())
                })
            });
        let started = readers.collect::<Result<Vec<()>, _>>().and_then(|_| {
            let senders = producers
                .into_iter()
                .zip(&producing)
                .map(|(make, counter)| {
                    let shared = &shared;
                    spawn(scope, &sender, "send", move || {
                        Event::Produced(make(shared, counter).run())
                    })
                });
            senders.collect::<Result<Vec<()>, _>>()
        });
        if let Err(error) = started {
            watch.fail(error);
        }
        drop(sender);
        watch.until_all_are_done(count, &events, progress);
    });
    progress.clear();
    watch.finish()
}

/// Starts a thread that reports what it found.
fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    events: &mpsc::Sender<Event>,
    name: &str,
    body: impl FnOnce() -> Event + Send + 'scope,
) -> Result<(), LoadError> {
    let events = events.clone();
    let report = move || {
        // The receiver goes only after all threads.
        let _ = events.send(body());
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, report)
        .map(|_| ())
        .map_err(LoadError::io("start a thread"))
}

struct Watch<'a> {
    work: &'a Work<'a>,
    shared: &'a Shared<'a>,
    producing: &'a [Counter],
    consuming: &'a [Counter],
    left_to_produce: usize,
    from: Option<Sample>,
    error: Option<LoadError>,
    done: Done,
}

impl Watch<'_> {
    fn sample(&self) -> Sample {
        Sample {
            at_ns: self.shared.timeline.now_ns(),
            produced: sum(self.producing),
            consumed: sum(self.consuming),
            processor: processor_time(),
        }
    }

    /// Keeps the first error that says more than that a thread was told to stop.
    fn fail(&mut self, error: LoadError) {
        self.shared.failed.store(true, Ordering::Relaxed);
        if self
            .error
            .as_ref()
            .is_none_or(|first| matches!(first, LoadError::Stopped))
        {
            self.error = Some(error);
        }
    }

    fn until_all_are_done(
        &mut self,
        mut threads: usize,
        events: &mpsc::Receiver<Event>,
        progress: &mut dyn Progress,
    ) {
        let window = self.shared.window;
        let mut next_tick_ns = 0;
        while threads > 0 {
            let sample = self.sample();
            if self.from.is_none() && sample.at_ns >= window.from_ns {
                self.from = Some(sample);
            }
            if self.done.until.is_none() && window.is_over(sample.at_ns) {
                self.done.until = Some(sample);
            }
            if sample.at_ns >= next_tick_ns {
                next_tick_ns = (sample.at_ns / TICK_NS + 1) * TICK_NS;
                self.done.samples.push(sample);
                progress.update(&self.standing(&sample));
            }
            let next_ns = [next_tick_ns, window.from_ns, window.until_ns]
                .into_iter()
                .filter(|next| *next > sample.at_ns)
                .min();
            let wait = next_ns
                .unwrap_or(next_tick_ns)
                .saturating_sub(self.shared.timeline.now_ns());
            match events.recv_timeout(Duration::from_nanos(wait)) {
                Ok(event) => {
                    threads -= 1;
                    self.take(event);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.done.last = self.sample();
        self.done.samples.push(self.done.last);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Produced(Ok(produced)) => self.done.produced.push(produced),
            Event::Consumed(Ok(consumed)) => self.done.consumed.push(consumed),
            Event::Produced(Err(error)) | Event::Consumed(Err(error)) => self.fail(error),
        }
        if self.done.produced.len() == self.left_to_produce {
            self.left_to_produce = usize::MAX;
            for (partition, end) in self.work.ends.iter().enumerate() {
                let lanes = self
                    .done
                    .produced
                    .iter()
                    .flat_map(|produced| &produced.lanes);
                end.store(
                    end_of(partition, lanes, self.work.starts),
                    Ordering::Release,
                );
            }
        }
    }

    fn standing(&self, sample: &Sample) -> Standing {
        Standing {
            what: self.work.what,
            produced: sample.produced,
            consumed: sample.consumed,
            total_records: self.work.total_records,
            elapsed: Duration::from_nanos(sample.at_ns),
            planned: self
                .work
                .duration
                .map(|duration| duration + self.work.warmup),
        }
    }

    fn finish(mut self) -> Result<Done, LoadError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.done.from = self.from.ok_or(LoadError::WithinWarmup)?;
        Ok(self.done)
    }
}

/// Behind the last record that the lanes of a partition had stored.
pub(crate) fn end_of<'l>(
    partition: usize,
    lanes: impl Iterator<Item = &'l Lane>,
    starts: &[u64],
) -> u64 {
    let start = starts.get(partition).copied().unwrap_or(0);
    let (mut end, mut sent) = (start, 0);
    for lane in lanes.filter(|lane| lane.partition as usize == partition) {
        sent += lane.sent;
        // Without acknowledgements nothing is known but what was sent.
        end = end.max(if lane.first_offset.is_some() {
            lane.next_offset.unwrap_or(start)
        } else {
            0
        });
    }
    if end == start { start + sent } else { end }
}
