//! How a job ends that is not admitted: by the account's own error, or because admission stops.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::{
    JobDispatcher, JobError, JobRequirements, ManualClock, RetrySignal, Workflow, job_fn,
};

fn started() -> (JobDispatcher, Workflow) {
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(ManualClock::new()))
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    (dispatcher, Workflow::new("user", "test").unwrap())
}

#[test]
fn callbacks_run_when_the_shutdown_finds_their_job_waiting_to_be_admitted_again() {
    let (dispatcher, workflow) = started();
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let runs = Arc::new(AtomicUsize::new(0));
    let captured = Arc::new(());
    let alive = Arc::downgrade(&captured);

    let (start, started) = mpsc::channel();
    let (fail, failing) = mpsc::channel::<()>();
    let (needed, counted) = (Arc::clone(&gate), Arc::clone(&runs));
    let mut captured = Some(captured);
    let job = job_fn(
        move || JobRequirements::none().permit(&needed),
        move |_, context| {
            let held = (captured.take().unwrap(), context.clone());
            let counted = Arc::clone(&counted);
            context.on_cancel(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                drop(held);
            });
            start.send(()).unwrap();
            failing.recv().unwrap();
            let signal = RetrySignal::correction("model", 1, JobError::correctable("again"));
            Err::<(), _>(signal.into())
        },
    );
    let job = dispatcher.submit(&workflow, job).unwrap();
    started.recv().unwrap();

    // Somebody else is admitted before it is again.
    let (start, started) = mpsc::channel();
    let (end, ending) = mpsc::channel::<()>();
    let needed = Arc::clone(&gate);
    let other = job_fn(
        move || JobRequirements::none().permit(&needed),
        move |_, _| {
            start.send(()).unwrap();
            ending.recv().unwrap();
            Ok(())
        },
    );
    let other = dispatcher.submit(&workflow, other).unwrap();
    let in_line = |count| {
        while dispatcher.admission().queue_len() != count {
            thread::yield_now();
        }
    };
    in_line(1);
    fail.send(()).unwrap();
    started.recv().unwrap();
    in_line(1);

    thread::scope(|scope| {
        let shutdown = scope.spawn(|| dispatcher.shutdown(Duration::from_secs(5)).unwrap());
        assert!(job.get().unwrap_err().is_cancelled());
        let ran = runs.load(Ordering::SeqCst);
        end.send(()).unwrap();
        other.get().unwrap();
        shutdown.join().unwrap();
        assert_eq!(ran, 1, "before its handle answers");
    });
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(alive.upgrade().is_none(), "what it held is gone");
}
