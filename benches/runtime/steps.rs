//! What a job on a thread of its own cannot do without, step by step: the lower bound of B1 and B2.
//!
//! `-- --probe B1` and `-- --probe B2` print it. Each step does what the one before it does and one
//! thing more, with the standard library and bare channels; none of it is the runtime's. All steps
//! are timed in the same rounds, one after the other, and so are the runtime's own jobs.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use crossbeam::channel::{Sender, unbounded};
use nucleo_runtime::events::EventFilter;

use crate::jobs;
use crate::report::median;

const ROUNDS: usize = 15;
const ONE_BY_ONE: usize = 1_000;
const BURST: usize = 1_000;

/// What a subscriber gets: as large as an event of a job.
type Told = Arc<[u64; 24]>;

/// How much of a job a bare thread does.
#[derive(Clone, Default)]
struct Bare {
    named: bool,
    /// The process's resident memory, read when the job comes and when it ends.
    statm: Option<Arc<File>>,
    subscribers: Vec<Sender<Told>>,
    /// How many events each of them gets: what a job says of itself (4), or that and what it takes and
    /// gives back (9).
    events: usize,
}

/// Where a caller waits, as at a job's handle.
#[derive(Default)]
struct Handle {
    answered: Mutex<bool>,
    answer_came: Condvar,
}

impl Handle {
    fn answer(&self) {
        *self.answered.lock().unwrap() = true;
        self.answer_came.notify_all();
    }

    fn get(&self) {
        let mut answered = self.answered.lock().unwrap();
        while !*answered {
            answered = self.answer_came.wait(answered).unwrap();
        }
    }
}

impl Bare {
    fn named() -> Self {
        Self {
            named: true,
            ..Self::default()
        }
    }

    fn gated() -> Self {
        Self {
            statm: File::open("/proc/self/statm").ok().map(Arc::new),
            ..Self::named()
        }
    }

    fn told_to(subscribers: usize, events: usize) -> Self {
        let subscribe = |_| {
            let (to, from) = unbounded::<Told>();
            // Sleeps whenever there is nothing, and ends with the last sender.
            thread::spawn(move || from.iter().for_each(|told| drop(black_box(told))));
            to
        };
        Self {
            subscribers: (0..subscribers).map(subscribe).collect(),
            events,
            ..Self::gated()
        }
    }

    fn read_memory(&self) {
        if let Some(statm) = &self.statm {
            let mut text = [0_u8; 128];
            let _ = black_box(statm.read_at(&mut text, 0));
        }
    }

    fn tell(&self, events: usize) {
        if self.subscribers.is_empty() {
            return;
        }
        for _ in 0..events {
            let told = Arc::new([0; 24]);
            for to in &self.subscribers {
                let _ = to.send(Arc::clone(&told));
            }
        }
    }

    fn submit(self: &Arc<Self>) -> Arc<Handle> {
        let handle = Arc::new(Handle::default());
        let (bare, answer) = (Arc::clone(self), Arc::clone(&handle));
        // One says that it was submitted, two that it is over, and the others come in between.
        self.tell(1);
        let work = move || {
            bare.read_memory();
            bare.tell(bare.events.saturating_sub(3));
            bare.read_memory();
            bare.tell(2);
            answer.answer();
        };
        let mut builder = thread::Builder::new();
        if self.named {
            builder = builder.name("Bare-0123456789".to_owned());
        }
        drop(builder.spawn(work).unwrap());
        handle
    }
}

/// One that is measured: its name, and what does it so often and answers the microseconds each took.
type Step = (String, Box<dyn FnMut() -> f64>);

fn step(name: &str, mut work: impl FnMut() -> usize + 'static) -> Step {
    let timed = move || {
        let began = Instant::now();
        let count = work();
        began.elapsed().as_secs_f64() * 1e6 / count as f64
    };
    (name.to_owned(), Box::new(timed))
}

fn measure(steps: Vec<Step>) {
    let mut steps: Vec<_> = steps.into_iter().map(|step| (step, Vec::new())).collect();
    for round in 0..=ROUNDS {
        for ((_, timed), figures) in &mut steps {
            let figure = timed();
            // The first round warms up.
            if round > 0 {
                figures.push(figure);
            }
        }
    }
    let mut floor = None;
    for ((name, _), figures) in steps {
        let figure = median(figures);
        let floor = *floor.get_or_insert(figure);
        println!("{name:<58} {figure:>9.3} us  ratio {:>7.3}", figure / floor);
    }
}

pub(crate) fn probe(what: &str) -> bool {
    match what {
        "B1" => measure(one_at_a_time()),
        "B2" => measure(in_bursts()),
        _ => return false,
    }
    true
}

fn one_at_a_time() -> Vec<Step> {
    let floor = step("spawn and join", || {
        for _ in 0..ONE_BY_ONE {
            thread::spawn(|| {}).join().unwrap();
        }
        ONE_BY_ONE
    });
    let bare = |name: &str, bare: Bare| {
        let bare = Arc::new(bare);
        step(name, move || {
            for _ in 0..ONE_BY_ONE {
                bare.submit().get();
            }
            ONE_BY_ONE
        })
    };
    let of_itself = jobs::of_itself();
    let job = |name: &str, subscribers: usize, filter: &EventFilter| {
        let bench = jobs::Bench::told(subscribers, filter);
        step(name, move || {
            for _ in 0..ONE_BY_ONE {
                bench.submit().get().unwrap();
            }
            ONE_BY_ONE
        })
    };
    vec![
        floor,
        bare("a handle instead of the join", Bare::default()),
        bare("and a name", Bare::named()),
        bare("and two looks at the process's memory", Bare::gated()),
        bare("and 4 events to 1 subscriber", Bare::told_to(1, 4)),
        bare("and 9 events to 1 subscriber", Bare::told_to(1, 9)),
        bare("and 4 events to 8 subscribers", Bare::told_to(8, 4)),
        bare("and 9 events to 8 subscribers", Bare::told_to(8, 9)),
        job("a job of the runtime", 0, &of_itself),
        job("its own 4 events to 1 subscriber", 1, &of_itself),
        job(
            "all of its 9 events to 1 subscriber",
            1,
            &EventFilter::all(),
        ),
        job("its own 4 events to 8 subscribers", 8, &of_itself),
        job(
            "all of its 9 events to 8 subscribers",
            8,
            &EventFilter::all(),
        ),
    ]
}

fn in_bursts() -> Vec<Step> {
    let floor = step("spawn all, then join all", || {
        let threads: Vec<_> = (0..BURST).map(|_| thread::spawn(|| {})).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        BURST
    });
    let bare = |name: &str, bare: Bare| {
        let bare = Arc::new(bare);
        step(name, move || {
            let handles: Vec<_> = (0..BURST).map(|_| bare.submit()).collect();
            handles.iter().for_each(|handle| handle.get());
            BURST
        })
    };
    let bench = jobs::Bench::start(0);
    let job = step("a job of the runtime", move || {
        let handles: Vec<_> = (0..BURST).map(|_| bench.submit()).collect();
        for handle in handles {
            handle.get().unwrap();
        }
        BURST
    });
    vec![
        floor,
        bare("handles instead of the joins", Bare::default()),
        bare("and names", Bare::named()),
        bare("and two looks at the process's memory each", Bare::gated()),
        job,
    ]
}
