//! B6 and B7: resident memory, each kind of thread in a process of its own.

use std::process::Command;
use std::sync::Arc;
use std::thread;

use nucleo_runtime::admission::{CountingGate, Demand};
use nucleo_runtime::events::{Event, EventFilter};
use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn, testing};

use crate::Effort;
use crate::report::{Reach, Row};

/// So many wait at once, where the system allows as many threads.
const JOBS: usize = 10_000;
const SUBSCRIPTIONS: usize = 1_000;

/// The resident memory of this process in KiB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .unwrap_or(f64::NAN)
}

pub(crate) fn parked(_: Effort, report: &mut dyn FnMut(Row)) {
    report(Row::against(
        "B6",
        "resident a job parked in admission, by a bare parked thread",
        "KiB",
        in_a_process("jobs"),
        in_a_process("threads"),
        1.5,
    ));
}

pub(crate) fn subscriptions(_: Effort, report: &mut dyn FnMut(Row)) {
    // A thread that sleeps takes more than that by itself (the floor of B6), so what counts is what a
    // subscription adds to its thread.
    report(Row::alone(
        "B7",
        "resident an idle subscription, beside its thread",
        "KiB",
        in_a_process("subscriptions") - in_a_process("threads"),
        Reach::AtMost(8.0),
    ));
}

fn in_a_process(what: &str) -> f64 {
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own).args(["--probe", what]).output().unwrap();
    assert!(output.status.success(), "{what}: {output:?}");
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap()
}

/// What one costs of ten thousand (or a thousand), printed by the process that has them.
pub(crate) fn probe(what: &str) -> Option<f64> {
    match what {
        "threads" => Some(bare_threads()),
        "jobs" => Some(parked_jobs()),
        "subscriptions" => Some(idle_subscriptions()),
        _ => None,
    }
}

fn bare_threads() -> f64 {
    let count = crate::as_many_threads_as(JOBS);
    let ready = Arc::new(std::sync::Barrier::new(count + 1));
    let before = resident();
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let ready = Arc::clone(&ready);
            thread::spawn(move || {
                ready.wait();
                thread::park();
            })
        })
        .collect();
    ready.wait();
    let each = (resident() - before) / count as f64;
    for thread in threads {
        thread.thread().unpark();
        thread.join().unwrap();
    }
    each
}

fn parked_jobs() -> f64 {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "parked").unwrap();
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let context = testing::context(dispatcher.clock(), dispatcher.bus(), "alice", None).unwrap();
    let mut demand = Demand::new();
    demand.add(&gate, ());
    let held = dispatcher.admission().admit(demand, &context).unwrap();
    let before = resident();
    let handles: Vec<_> = (0..JOBS)
        .map(|_| {
            let gate = Arc::clone(&gate);
            let job = job_fn(move || JobRequirements::none().permit(&gate), |_, _| Ok(()));
            dispatcher.submit(&workflow, job).unwrap()
        })
        .collect();
    while dispatcher.admission().queue_len() + dispatcher.queue_len() < JOBS {
        thread::yield_now();
    }
    let each = (resident() - before) / dispatcher.admission().queue_len() as f64;
    held.release();
    for handle in handles {
        handle.get().unwrap();
    }
    each
}

fn idle_subscriptions() -> f64 {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let before = resident();
    let subscriptions: Vec<_> = (0..SUBSCRIPTIONS)
        .map(|_| {
            dispatcher
                .subscribe(EventFilter::all(), Arc::new(|_: &Arc<Event>| {}))
                .unwrap()
        })
        .collect();
    // Each has come to its queue when it has heard of one job.
    let nothing = job_fn(JobRequirements::none, |_, _| Ok(()));
    let workflow = Workflow::new("alice", "idle").unwrap();
    dispatcher
        .submit(&workflow, nothing)
        .unwrap()
        .get()
        .unwrap();
    testing::quiesce(&dispatcher);
    let each = (resident() - before) / SUBSCRIPTIONS as f64;
    drop(subscriptions);
    each
}
