//! A spend gate that does not answer keeps no job from ending.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nucleo_runtime::events::ModelCall;
use nucleo_runtime::models::{PricedAttempt, SpendGate};
use nucleo_runtime::{JobDispatcher, JobError, JobRequirements, JobSnapshot, job_fn};

use crate::support::Run;

/// Does not come back from the end of a job that is called `bad` until it is let go.
#[derive(Debug)]
struct Stuck {
    told: Mutex<mpsc::Sender<String>>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl SpendGate for Stuck {
    fn judge(&self, _: &PricedAttempt<'_>) -> Result<(), JobError> {
        Ok(())
    }

    fn settle(&self, job: &JobSnapshot, _: &[ModelCall]) {
        let told = self.told.lock().unwrap().clone();
        told.send(job.display_name().to_owned()).unwrap();
        if job.display_name() == "bad" {
            let _ = self.go.lock().unwrap().recv();
        }
    }
}

#[test]
fn a_gate_that_does_not_answer_keeps_no_job_from_ending() {
    let (told, is_told) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let gate = Stuck {
        told: Mutex::new(told),
        go: Mutex::new(goes),
    };
    let run = Run::new(|builder| builder.max_threads(64).spend_gate(Arc::new(gate)));
    let job = |name: &str| job_fn(JobRequirements::none, |_, _| Ok::<_, JobError>(())).named(name);
    // Two threads call the gate, and each is waited for once.
    for _ in 0..2 {
        let handle = run.submit(job("bad"));
        assert_eq!(is_told.recv().unwrap(), "bad");
        assert!(!handle.is_settled());
        run.clock.advance(Duration::from_millis(500));
        handle.get().unwrap();
    }
    // From then on nobody waits, and cancelling does not either.
    let first = run.submit(job("good"));
    first.get().unwrap();
    let (release, is_released) = mpsc::channel::<()>();
    let runs = run.submit(job_fn(JobRequirements::none, move |_, _| {
        let _ = is_released.recv();
        Ok::<_, JobError>(())
    }));
    let queued = run
        .dispatcher
        .submit_with(&run.workflow, job("good"))
        .after(&runs)
        .submit()
        .unwrap();
    queued.cancel("not needed");
    assert!(queued.get().unwrap_err().is_cancelled());
    release.send(()).unwrap();
    runs.get().unwrap();
    // Whoever was not waited for is told all the same, once the gate is back.
    drop(go);
    let mut late: Vec<_> = (0..3).map(|_| is_told.recv().unwrap()).collect();
    late.sort();
    assert_eq!(late[1..], ["good", "good"]);
    run.submit(job("good")).get().unwrap();
    assert_eq!(is_told.recv().unwrap(), "good");
    assert!(is_told.try_recv().is_err());
}

#[test]
fn every_gate_takes_a_thread_of_the_cap() {
    let gate = || nucleo_runtime::observe::CostLedger::new();
    let build = |threads| {
        let builder = JobDispatcher::builder().max_threads(threads);
        builder.spend_gate(gate()).spend_gate(gate()).build()
    };
    assert!(build(9).unwrap_err().to_string().contains("at least 10"));
    assert!(build(10).is_ok());
}
