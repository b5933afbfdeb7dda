//! A logger that panics ends with its line, on whatever thread of the runtime.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::{JobDispatcher, JobRequirements, ManualClock, Workflow, job_fn};

#[path = "support/stuck.rs"]
mod stuck;

use stuck::Stuck;

static LINES: AtomicUsize = AtomicUsize::new(0);

struct Panics;

impl log::Log for Panics {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.fetch_add(1, Ordering::SeqCst);
        panic!("the logger panics at: {}", record.args());
    }

    fn flush(&self) {}
}

// case TO-5
#[test]
fn a_logger_that_panics_ends_no_timeout() {
    log::set_logger(&Panics).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .max_threads(40)
        .without_memory_gate()
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let stuck = Stuck::default();
    // Their callbacks take all threads that close, so the timer has something to say of the others.
    let jobs: Vec<_> = (0..6)
        .map(|_| {
            let (callback, stuck) = (stuck.clone(), stuck.clone());
            let (begun, begins) = mpsc::channel();
            let job = job_fn(JobRequirements::none, move |_, context| {
                let callback = callback.clone();
                context.on_timeout(move || callback.here());
                let _ = begun.send(());
                stuck.here();
                Ok(())
            });
            let job = job.timeout(Some(Duration::from_millis(200)));
            let handle = dispatcher.submit(&workflow, job).unwrap();
            begins.recv().unwrap();
            handle
        })
        .collect();
    stuck.wait_until_reached();
    let begun = Instant::now();
    for job in jobs {
        while !job.is_settled() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it never comes");
            clock.advance(Duration::from_millis(10));
            thread::yield_now();
        }
        assert!(job.get().unwrap_err().is_timed_out());
    }
    // Written by a thread that may panic and block, some time.
    while LINES.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "no line comes");
        thread::yield_now();
    }
    stuck.let_go();
    dispatcher.shutdown(Duration::from_secs(1)).unwrap();
}
