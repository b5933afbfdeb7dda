//! Ten thousand jobs that wait at once for one gate: what each costs, and that all of them run.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nucleo_runtime::admission::{CountingGate, Demand};
use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn, testing};

const JOBS: usize = 10_000;
/// How many of them run at once when they may.
const PERMITS: u32 = 100;

/// The resident memory of this process in KiB, where the system tells it.
fn resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn ten_thousand_jobs_wait_for_one_gate_and_all_of_them_finish() {
    let dispatcher = JobDispatcher::builder()
        .stack_size(256 * 1024)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "parked").unwrap();
    let gate = Arc::new(CountingGate::new("gate", PERMITS).unwrap());
    let context = testing::context(dispatcher.clock(), dispatcher.bus(), "alice", None).unwrap();
    let mut demand = Demand::new();
    for _ in 0..PERMITS {
        demand.add(&gate, ());
    }
    let held = dispatcher.admission().admit(demand, &context).unwrap();
    assert_eq!(gate.in_use(), PERMITS);

    let before = resident();
    let ran = Arc::new(AtomicU32::new(0));
    let handles: Vec<_> = (0..JOBS)
        .map(|_| {
            let (gate, ran) = (Arc::clone(&gate), Arc::clone(&ran));
            let job = job_fn(
                move || JobRequirements::none().permit(&gate),
                move |_, _| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                },
            );
            dispatcher.submit(&workflow, job).unwrap()
        })
        .collect();
    // Whoever has a thread is parked with it; on a system that allows fewer threads than there are
    // jobs, the rest wait for one.
    while dispatcher.admission().queue_len() + dispatcher.queue_len() < JOBS {
        thread::yield_now();
    }
    let parked = dispatcher.admission().queue_len();
    if let (Some(before), Some(after)) = (before, resident()) {
        let each = (after - before) as f64 / parked as f64;
        println!("{parked} jobs parked, {each:.1} KiB resident each");
        // A thread that waits touches a few pages of its stack, and no more.
        assert!(each < 64.0, "{each:.1} KiB");
    }
    assert_eq!(ran.load(Ordering::SeqCst), 0);

    held.release();
    for handle in &handles {
        handle.get().unwrap();
    }
    assert_eq!(ran.load(Ordering::SeqCst) as usize, JOBS);
    assert_eq!(gate.in_use(), 0);
    assert_eq!(dispatcher.admission().queue_len(), 0);
    assert_eq!(dispatcher.job_count(), 0);
    assert!(dispatcher.threads().peak <= dispatcher.threads().cap);
}
