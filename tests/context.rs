//! What a job knows of itself and says: the context, on its own and inside a job.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::events::{Event, EventFilter, MessageBus, ProgressEvent, Severity};
use nucleo_runtime::{
    Clock, Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, JobState,
    ManualClock, MetadataValue, Workflow, job_fn, testing,
};

fn context(clock: &ManualClock, timeout: Option<Duration>) -> (JobContext, MessageBus) {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let bus = MessageBus::standalone(Arc::clone(&clock));
    (
        testing::context(&clock, &bus, "user", timeout).unwrap(),
        bus,
    )
}

fn counter() -> (Arc<AtomicUsize>, impl Fn() + Clone + Send + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    (count, move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })
}

// case CTX-01
#[test]
fn a_context_refuses_a_blank_user() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let bus = MessageBus::standalone(Arc::clone(&clock));
    for user in ["", " "] {
        assert!(testing::context(&clock, &bus, user, None).is_err());
    }
}

// case CTX-02
#[test]
fn a_cancel_callback_runs_once_however_often_it_is_cancelled() {
    let (context, _bus) = context(&ManualClock::new(), None);
    let (count, count_up) = counter();
    context.on_cancel(count_up);
    assert!(testing::cancel(&context, "first"));
    assert!(!testing::cancel(&context, "second"));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let error = context.check_cancellation().unwrap_err();
    assert!(error.llm_message().contains("first"), "{error}");
}

// case CTX-04
#[test]
fn a_callback_registered_by_a_callback_is_run_by_its_registrar_alone() {
    let (context, _bus) = context(&ManualClock::new(), None);
    let (outer, outer_up) = counter();
    let (inner, inner_up) = counter();
    let registering = context.clone();
    context.on_cancel(move || {
        outer_up();
        registering.on_cancel(inner_up);
    });
    testing::cancel(&context, "x");
    testing::cancel(&context, "y");
    assert_eq!(outer.load(Ordering::SeqCst), 1);
    assert_eq!(inner.load(Ordering::SeqCst), 1);
}

// case CTX-05
#[test]
fn every_cancel_callback_runs_once_whichever_side_it_lands_on() {
    for _ in 0..100 {
        let (context, _bus) = context(&ManualClock::new(), None);
        let (count, count_up) = counter();
        let start = Barrier::new(9);
        thread::scope(|scope| {
            for _ in 0..8 {
                let count_up = count_up.clone();
                scope.spawn(|| {
                    start.wait();
                    context.on_cancel(count_up);
                });
            }
            start.wait();
            testing::cancel(&context, "race");
        });
        assert_eq!(count.load(Ordering::SeqCst), 8);
    }
}

// case CTX-06
// case CTX-07
#[test]
fn a_timeout_callback_registered_late_runs_at_once_and_once() {
    let clock = ManualClock::new();
    let (context, _bus) = context(&clock, Some(Duration::from_millis(1)));
    clock.advance(Duration::from_millis(10));
    let (outer, outer_up) = counter();
    let (inner, inner_up) = counter();
    let registering = context.clone();
    context.on_timeout(move || {
        outer_up();
        registering.on_timeout(inner_up);
    });
    assert!(context.is_timed_out());
    assert!(context.is_timed_out());
    assert_eq!(outer.load(Ordering::SeqCst), 1);
    assert_eq!(inner.load(Ordering::SeqCst), 1);
    assert!(context.check_cancellation().unwrap_err().is_timed_out());
}

// case CTX-09
#[test]
fn timeout_callbacks_race_the_first_observation_and_run_once() {
    for _ in 0..100 {
        let clock = ManualClock::new();
        let (context, _bus) = context(&clock, Some(Duration::from_millis(1)));
        clock.advance(Duration::from_millis(1));
        let (count, count_up) = counter();
        let start = Barrier::new(9);
        thread::scope(|scope| {
            for _ in 0..8 {
                let count_up = count_up.clone();
                scope.spawn(|| {
                    start.wait();
                    context.on_timeout(count_up);
                });
            }
            start.wait();
            assert!(context.is_timed_out());
        });
        assert_eq!(count.load(Ordering::SeqCst), 8);
    }
}

// case CTX-10
#[test]
fn remaining_time_is_none_without_a_deadline_and_told_past_it() {
    let clock = ManualClock::new();
    let (free, _bus) = context(&clock, None);
    assert_eq!(free.remaining_time(), None);
    clock.advance(Duration::from_secs(3_600));
    assert!(!free.is_timed_out());

    let (bound, _bus) = context(&clock, Some(Duration::from_secs(10)));
    clock.advance(Duration::from_secs(4));
    assert_eq!(bound.remaining_time(), Some(Ok(Duration::from_secs(6))));
    clock.advance(Duration::from_secs(9));
    assert_eq!(bound.remaining_time(), Some(Err(Duration::from_secs(3))));
}

// case CTX-11
// case CTX-12
// case CTX-19
#[test]
fn progress_and_notifications_are_told_and_kept() {
    let (context, bus) = context(&ManualClock::new(), None);
    bus.start();
    let (sender, told) = mpsc::channel();
    let _subscription = bus
        .subscribe(
            EventFilter::all().workflow(context.workflow_id()),
            Arc::new(move |event: &Arc<Event>| {
                let _ = sender.send(Arc::clone(event));
            }),
        )
        .unwrap();
    assert_eq!(context.snapshot().state(), JobState::Queued);
    context.publish_user_progress("Indexing", "3 of 10", Some(30));
    context.publish_user_notification(Severity::Warning, "Disk", "nearly full");

    let Event::Progress(ProgressEvent::Job(progress)) = &*told.recv().unwrap() else {
        panic!("not a progress event");
    };
    assert_eq!(progress.text.as_deref(), Some("Indexing: 3 of 10"));
    assert_eq!(progress.percent, Some(30));
    let snapshot = context.snapshot();
    assert_eq!(snapshot.progress(), Some(30));
    assert_eq!(snapshot.progress_message(), Some("Indexing: 3 of 10"));
    assert_eq!(snapshot.state(), JobState::Running);

    let Event::Notification(notification) = &*told.recv().unwrap() else {
        panic!("not a notification");
    };
    assert_eq!(notification.severity, Severity::Warning);
}

// case CTX-14
#[test]
fn waits_are_summed_by_account_and_over_attempts() {
    let (context, _bus) = context(&ManualClock::new(), None);
    for (account, millis) in [("http", 100), ("http", 50), ("db:default", 7)] {
        context.record_resource_wait(account, Duration::from_millis(millis));
    }
    context.record_admission_wait(Duration::from_millis(120));
    context.record_admission_wait(Duration::from_millis(30));
    let snapshot = context.snapshot();
    let waits = snapshot.metadata().get("wait_times").unwrap();
    let waits = waits.as_table().unwrap();
    assert_eq!(
        (waits["http"], waits["db:default"], waits.len()),
        (150, 7, 2)
    );
    assert_eq!(
        snapshot.metadata().get("admission_wait_ms"),
        Some(&MetadataValue::Integer(150))
    );
}

// case CTX-15
// case CTX-16
#[test]
fn a_thread_knows_its_job_and_whether_it_holds() {
    struct Looking {
        gate: Arc<CountingGate>,
        held: mpsc::Sender<bool>,
    }
    impl Job for Looking {
        type Output = String;
        fn requirements(&self) -> JobRequirements {
            JobRequirements::none().permit(&self.gate)
        }
        fn pre_execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            self.held
                .send(JobContext::is_executing_with_resources())
                .unwrap();
            Ok(())
        }
        fn execute(&mut self, _: &JobResources, context: &JobContext) -> Result<String, JobError> {
            let current = JobContext::current().expect("a job's thread has a job");
            assert_eq!(current.job_id(), context.job_id());
            Ok(current.job_id().to_owned())
        }
        fn post_execute(&mut self, _: Result<&String, &JobError>, _: &JobContext) {
            self.held
                .send(JobContext::is_executing_with_resources())
                .unwrap();
        }
    }
    assert!(JobContext::current().is_none());
    assert!(!JobContext::is_executing_with_resources());
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let (held, told) = mpsc::channel();
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let handle = dispatcher
        .submit(&workflow, Looking { gate, held })
        .unwrap();
    assert_eq!(*handle.get().unwrap(), handle.job_id());
    assert_eq!(told.iter().collect::<Vec<_>>(), [true, false]);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_callback_sees_no_current_job_and_its_panic_goes_no_further() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let (seen, told) = mpsc::channel();
    let (ready, waiting) = mpsc::channel();
    let handle = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, move |_, context| {
                let seen = seen.clone();
                context.on_cancel(|| panic!("in a callback"));
                context.on_cancel(move || seen.send(JobContext::current().is_none()).unwrap());
                ready.send(()).unwrap();
                context.sleep(Duration::from_secs(3_600))
            }),
        )
        .unwrap();
    waiting.recv().unwrap();
    assert!(handle.cancel("enough"));
    assert_eq!(told.recv(), Ok(true));
    assert!(handle.get().unwrap_err().is_cancelled());
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}
