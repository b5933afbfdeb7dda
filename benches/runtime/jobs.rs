//! B1 to B3: whole jobs against bare threads.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{CountingGate, Demand, TokenBucket, TokenBudget};
use nucleo_runtime::events::{Event, EventFilter, EventKind};
use nucleo_runtime::{JobDispatcher, JobHandle, JobRequirements, Workflow, job_fn, testing};

use crate::Effort;
use crate::report::{Row, median};

/// A running dispatcher, and jobs that need three accounts.
pub(crate) struct Bench {
    dispatcher: JobDispatcher,
    workflow: Workflow,
    http: Arc<CountingGate>,
    slots: Arc<CountingGate>,
    tokens: Arc<TokenBucket>,
}

impl Bench {
    /// With subscribers that hear the four events of a job itself.
    pub(crate) fn start(subscribers: usize) -> Self {
        Self::told(subscribers, &of_itself())
    }

    /// With subscribers that hear what passes the filter.
    pub(crate) fn told(subscribers: usize, filter: &EventFilter) -> Self {
        let dispatcher = JobDispatcher::builder().build().unwrap();
        dispatcher.start().unwrap();
        for _ in 0..subscribers {
            dispatcher
                .subscribe(filter.clone(), Arc::new(|_: &Arc<Event>| {}))
                .unwrap()
                .detach();
        }
        let now = dispatcher.clock().now();
        let plenty = TokenBudget::new(u32::MAX, u32::MAX);
        Self {
            workflow: Workflow::new("alice", "bench").unwrap(),
            http: Arc::new(CountingGate::new("places", 1_000).unwrap()),
            slots: Arc::new(CountingGate::new("slots", 1_000).unwrap()),
            tokens: Arc::new(TokenBucket::new("tokens", plenty, now).unwrap()),
            dispatcher,
        }
    }

    pub(crate) fn submit(&self) -> JobHandle<()> {
        let (http, slots) = (Arc::clone(&self.http), Arc::clone(&self.slots));
        let tokens = Arc::clone(&self.tokens);
        let needs = move || {
            JobRequirements::none()
                .permit(&http)
                .permit(&slots)
                .limiter(&tokens, 10)
        };
        self.dispatcher
            .submit(&self.workflow, job_fn(needs, |_, _| Ok(())))
            .unwrap()
    }
}

/// What a job tells of itself: four events. What its accounts tell of it are five more here.
pub(crate) fn of_itself() -> EventFilter {
    EventFilter::all()
        .kind(EventKind::JobScheduled)
        .kind(EventKind::JobStarted)
        .kind(EventKind::JobCompleted)
        .kind(EventKind::WorkflowComplete)
}

fn micros(began: Instant, count: usize) -> f64 {
    began.elapsed().as_secs_f64() * 1e6 / count as f64
}

pub(crate) fn one_at_a_time(effort: Effort, report: &mut dyn FnMut(Row)) {
    const ROUNDS: usize = 15;
    let count = effort.pick(2_000, 400);
    let benches = [(0, 1.30), (1, 1.30), (8, 1.45)].map(|(n, most)| (n, most, Bench::start(n)));
    let mut floors = Vec::new();
    let mut values = vec![Vec::new(); benches.len()];
    for round in 0..=ROUNDS {
        let began = Instant::now();
        for _ in 0..count {
            thread::spawn(|| {}).join().unwrap();
        }
        let floor = micros(began, count);
        let jobs = benches.iter().map(|(_, _, bench)| {
            let began = Instant::now();
            for _ in 0..count {
                bench.submit().get().unwrap();
            }
            micros(began, count)
        });
        let jobs: Vec<_> = jobs.collect();
        // The first round warms up.
        if round > 0 {
            floors.push(floor);
            for (values, job) in values.iter_mut().zip(jobs) {
                values.push(job);
            }
        }
    }
    let floor = median(floors);
    for ((subscribers, most, _), values) in benches.iter().zip(values) {
        report(Row::against(
            format!("B1.{subscribers}"),
            format!("whole job by spawn and join, {subscribers} subscribers"),
            "us",
            median(values),
            floor,
            *most,
        ));
    }
}

pub(crate) fn in_bursts(effort: Effort, report: &mut dyn FnMut(Row)) {
    const BURST: usize = 1_000;
    let rounds = effort.pick(15, 5);
    let bench = Bench::start(0);
    let mut floors = Vec::new();
    let mut values = Vec::new();
    for round in 0..=rounds {
        let began = Instant::now();
        let threads: Vec<_> = (0..BURST).map(|_| thread::spawn(|| {})).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let floor = micros(began, BURST);
        let began = Instant::now();
        let handles: Vec<_> = (0..BURST).map(|_| bench.submit()).collect();
        for handle in handles {
            handle.get().unwrap();
        }
        let job = micros(began, BURST);
        if round > 0 {
            floors.push(floor);
            values.push(job);
        }
    }
    report(Row::against(
        "B2",
        "whole jobs in bursts of 1 000 by spawn all, then join all",
        "us",
        median(values),
        median(floors),
        0.80,
    ));
}

pub(crate) fn through_a_gate(effort: Effort, report: &mut dyn FnMut(Row)) {
    let jobs = crate::as_many_threads_as(10_000);
    let rounds = effort.pick(5, 1);
    let mut floors = Vec::new();
    let mut values = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        let threads: Vec<_> = (0..jobs).map(|_| thread::spawn(thread::park)).collect();
        for thread in &threads {
            thread.thread().unpark();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        floors.push(micros(began, jobs));
        values.push(gated(jobs));
    }
    report(Row::against(
        "B3",
        format!("{jobs} jobs through a gate of 8 by park, release, join"),
        "us",
        median(values),
        median(floors),
        1.30,
    ));
}

fn gated(jobs: usize) -> f64 {
    const PERMITS: u32 = 8;
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "gated").unwrap();
    let gate = Arc::new(CountingGate::new("gate", PERMITS).unwrap());
    let context = testing::context(dispatcher.clock(), dispatcher.bus(), "alice", None).unwrap();
    let mut all = Demand::new();
    for _ in 0..PERMITS {
        all.add(&gate, ());
    }
    let held = dispatcher.admission().admit(all, &context).unwrap();
    let began = Instant::now();
    let handles: Vec<_> = (0..jobs)
        .map(|_| {
            let gate = Arc::clone(&gate);
            let job = job_fn(move || JobRequirements::none().permit(&gate), |_, _| Ok(()));
            dispatcher.submit(&workflow, job).unwrap()
        })
        .collect();
    // As many as the cap allows are parked; the others wait for a thread.
    while dispatcher.admission().queue_len() + dispatcher.queue_len() < jobs {
        thread::yield_now();
    }
    held.release();
    for handle in &handles {
        handle.get().unwrap();
    }
    let took = micros(began, jobs);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    took
}
