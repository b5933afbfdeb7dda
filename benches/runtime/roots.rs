//! B10: far more root jobs than threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};

use crate::Effort;
use crate::report::{Reach, Row};

const ROOTS: usize = 100_000;
const PERMITS: u32 = 64;

/// An abort of this process is the row's failure.
pub(crate) fn many(_: Effort, report: &mut dyn FnMut(Row)) {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "roots").unwrap();
    let gate = Arc::new(CountingGate::new("gate", PERMITS).unwrap());
    let began = Instant::now();
    let handles: Vec<_> = (0..ROOTS)
        .map(|_| {
            let gate = Arc::clone(&gate);
            let job = job_fn(move || JobRequirements::none().permit(&gate), |_, _| Ok(()));
            dispatcher.submit(&workflow, job).unwrap()
        })
        .collect();
    for handle in &handles {
        handle.get().unwrap();
    }
    let took = began.elapsed();
    let threads = dispatcher.threads();
    dispatcher.shutdown(Duration::from_secs(30)).unwrap();
    report(Row {
        id: "B10".to_owned(),
        name: format!(
            "100 000 roots on 64 permits; most threads at once by the cap of {}",
            threads.cap
        ),
        value: took.as_secs_f64(),
        unit: "s",
        floor: None,
        ratio: threads.peak as f64 / threads.cap as f64,
        reach: Reach::AtMost(1.0),
    });
}
