//! Submissions that wait for their time.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::{DelayedHandle, ErrorKind, Job, JobRequirements, doer_fn, job_fn, testing};

use crate::support::{Host, held};

fn answering(answer: u32) -> impl Job<Output = u32> {
    job_fn(JobRequirements::none, move |_, _| Ok(answer))
}

fn delayed<J: Job>(host: &Host, seconds: u64, job: J) -> DelayedHandle<J::Output> {
    host.dispatcher
        .submit_delayed(Duration::from_secs(seconds), &host.workflow, job)
        .unwrap()
}

#[test]
fn a_delayed_job_is_submitted_when_its_time_has_come_and_costs_no_thread_until_then() {
    let host = Host::new();
    testing::quiesce(&host.dispatcher);
    let before = host.dispatcher.threads().live;
    let waiting: Vec<_> = (1..=100)
        .map(|n| delayed(&host, 10, answering(n)))
        .collect();
    assert_eq!(host.dispatcher.threads().live, before);
    host.clock.advance(Duration::from_secs(9));
    testing::quiesce(&host.dispatcher);
    assert!(waiting[0].try_get().unwrap().is_none());
    assert_eq!(host.dispatcher.job_count(), 0);

    host.clock.advance(Duration::from_secs(1));
    for (n, handle) in (1..).zip(waiting) {
        let job = handle.get().unwrap();
        assert_eq!(*job.get().unwrap(), n);
        assert!(job.snapshot().is_root());
        assert_eq!(
            handle.try_get().unwrap().unwrap().job_id(),
            job.job_id(),
            "asked again it answers the same"
        );
    }
}

#[test]
fn a_delayed_job_of_either_queue_is_submitted() {
    let host = Host::new();
    for timeout in [5, 60] {
        let job = job_fn(JobRequirements::none, |_, _| Ok(()))
            .timeout(Some(Duration::from_secs(timeout)));
        let handle = delayed(&host, 1, job);
        host.clock.advance(Duration::from_secs(1));
        handle.get().unwrap().get().unwrap();
    }
}

// case SUB-14
#[test]
fn a_delayed_submission_creates_roots_alone() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let parent = host.submit(job);
    hold.wait_until_running();
    let handle = host
        .dispatcher
        .submit_delayed(Duration::from_secs(1), &parent, answering(1))
        .unwrap();
    host.clock.advance(Duration::from_secs(1));
    let refused = handle.get().unwrap();
    let error = refused.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { .. }), "{error}");
    assert!(error.to_string().contains("may only create new roots"));
    hold.release();
    parent.get().unwrap();
}

#[test]
fn a_shutdown_cancels_what_is_delayed_before_it_waits_for_what_runs() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let running = host.submit(job);
    hold.wait_until_running();
    let waiting = delayed(&host, 3_600, answering(1));
    let waiter = {
        let waiting = waiting.clone();
        thread::spawn(move || waiting.get().map(drop))
    };
    let dispatcher = host.dispatcher.clone();
    let shutdown = thread::spawn(move || dispatcher.shutdown(Duration::from_secs(3_600)));
    // The running job still runs, and nobody moves the clock.
    let refused = waiter.join().unwrap().unwrap_err();
    assert!(refused.is_cancelled(), "{refused}");
    assert!(waiting.try_get().unwrap_err().is_cancelled());
    hold.release();
    running.get().unwrap();
    shutdown.join().unwrap().unwrap();
}

#[test]
fn a_delayed_submission_that_races_a_shutdown_is_answered() {
    for _ in 0..100 {
        let host = Host::new();
        let waiting: Vec<_> = (0..8).map(|n| delayed(&host, 1, answering(n))).collect();
        thread::scope(|scope| {
            scope.spawn(|| host.clock.advance(Duration::from_secs(1)));
            scope.spawn(|| host.dispatcher.shutdown(Duration::from_secs(1)));
            scope.spawn(|| {
                let late = host.dispatcher.submit_delayed(
                    Duration::from_millis(1),
                    &host.workflow,
                    answering(9),
                );
                if let Ok(late) = late {
                    let _ = late.get().map(|job| job.get());
                }
            });
            for handle in &waiting {
                // Submitted, and then settled one way or another; or refused.
                if let Ok(job) = handle.get() {
                    let _ = job.get();
                }
            }
        });
    }
}

#[test]
fn dropping_a_dispatcher_answers_what_was_delayed() {
    let host = Host::new();
    let waiting = delayed(&host, 3_600, answering(1));
    drop(host);
    assert!(waiting.get().is_err());
}

#[test]
fn an_orchestrator_waits_for_a_delayed_submission_and_a_job_that_holds_does_not() {
    let host = Host::new();
    let waiting = delayed(&host, 10, answering(7));
    let (about_to_wait, waits) = mpsc::channel();
    let asked = waiting.clone();
    let doer = host.submit(doer_fn(move |_| {
        about_to_wait.send(()).unwrap();
        Ok(*asked.get()?.get()?)
    }));
    waits.recv().unwrap();

    let permit = Arc::new(CountingGate::new("permit", 1).unwrap());
    let asked = waiting.clone();
    let holding = job_fn(
        move || JobRequirements::none().permit(&permit),
        move |_, _| asked.get().map(drop),
    );
    let refused = host.submit(holding).get().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Deadlock { .. }));

    host.clock.advance(Duration::from_secs(10));
    assert_eq!(*doer.get().unwrap(), 7);
}

#[test]
fn a_delay_past_the_end_of_time_is_refused_and_one_of_zero_is_now() {
    let host = Host::new();
    let never = host
        .dispatcher
        .submit_delayed(Duration::MAX, &host.workflow, answering(1))
        .unwrap();
    assert!(never.get().is_err());
    assert_eq!(
        *delayed(&host, 0, answering(2))
            .get()
            .unwrap()
            .get()
            .unwrap(),
        2
    );
}
