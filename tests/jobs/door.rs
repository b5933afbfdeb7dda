//! The door: who may submit, under whom, and what is taken.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::Replenishment;
use nucleo_runtime::events::{Event, EventKind, LifecycleEvent};
use nucleo_runtime::{
    Doer, ErrorKind, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements,
    JobResources, JobState, Metadata, MetadataValue, OrchestratorContext, RetrySignal, SubmitError,
    Workflow, doer_fn, governor, job_fn,
};

use crate::support::{Account, Host, Log, held};

fn nothing() -> impl Job<Output = ()> {
    job_fn(JobRequirements::none, |_, _| Ok(()))
}

/// The text of a refusal, which is the dispatcher's own.
fn system_refusal<T: Send + Sync + 'static + std::fmt::Debug>(handle: &JobHandle<T>) -> String {
    let error = handle.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { .. }), "{error}");
    error.to_string()
}

// case SUB-01
#[test]
fn a_leaf_that_submits_gets_a_handle_born_failed() {
    let host = Host::new();
    let (dispatcher, workflow) = (host.dispatcher.clone(), host.workflow.clone());
    let (told, refusals) = mpsc::channel();
    let leaf = host.submit(job_fn(JobRequirements::none, move |_, context| {
        let under_itself = dispatcher.submit(context, nothing())?;
        let under_its_workflow = dispatcher.submit(&workflow, nothing())?;
        let through_the_governor = governor::submit(nothing())?;
        for refused in [under_itself, under_its_workflow, through_the_governor] {
            told.send(refused).unwrap();
        }
        Ok("went on")
    }));
    assert_eq!(*leaf.get().unwrap(), "went on");
    let refused: Vec<_> = refusals.iter().take(3).collect();
    for handle in &refused {
        let message = system_refusal(handle);
        assert!(
            message.contains("Only orchestrators may submit"),
            "{message}"
        );
        assert!(message.contains(leaf.job_id()), "{message}");
        assert_eq!(handle.snapshot().state(), JobState::Failed);
        assert!(!host.kinds(handle).contains(&EventKind::JobScheduled));
    }
}

#[test]
fn a_thread_that_works_for_a_leaf_through_bind_may_not_submit_either() {
    let host = Host::new();
    let (dispatcher, workflow) = (host.dispatcher.clone(), host.workflow.clone());
    let leaf = host.submit(job_fn(JobRequirements::none, move |_, context| {
        let (dispatcher, workflow) = (dispatcher.clone(), workflow.clone());
        let bound = context.bind(move || dispatcher.submit(&workflow, nothing()));
        Ok(thread::spawn(bound).join().unwrap()?)
    }));
    let message = system_refusal(&leaf.get().unwrap());
    assert!(
        message.contains("Only orchestrators may submit"),
        "{message}"
    );
}

// case SUB-02
#[test]
fn a_thread_outside_any_job_may_only_create_roots() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let parent = host.submit(job);
    hold.wait_until_running();
    let intruder = host.dispatcher.submit(&parent, nothing()).unwrap();
    let message = system_refusal(&intruder);
    assert!(
        message.contains("may only create new roots"),
        "the text: {message}"
    );
    assert_eq!(host.kinds(&intruder), [EventKind::JobFailed]);
    assert_eq!(
        intruder.snapshot().workflow_id(),
        parent.snapshot().workflow_id()
    );
    hold.release();
    parent.get().unwrap();
    let late = host.dispatcher.submit(&parent, nothing()).unwrap();
    assert!(system_refusal(&late).contains("may only create new roots"));
}

#[test]
fn a_queued_job_is_no_parent_either() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let first = host.submit(job);
    let queued = host
        .dispatcher
        .submit_with(&host.workflow, nothing())
        .after(&first)
        .submit()
        .unwrap();
    let intruder = host.dispatcher.submit(&queued, nothing()).unwrap();
    assert!(system_refusal(&intruder).contains("may only create new roots"));
    hold.release();
    queued.get().unwrap();
}

// case SUB-04
#[test]
fn an_orchestrator_submits_children_of_its_own_alone() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let other = host.submit(job);
    hold.wait_until_running();
    let (dispatcher, parent) = (host.dispatcher.clone(), other.clone());
    let orchestrator = host.submit(doer_fn(move |_| Ok(dispatcher.submit(&parent, nothing())?)));
    let refused = orchestrator.get().unwrap();
    let message = system_refusal(&refused);
    assert!(message.contains("runs on the thread of"), "{message}");
    assert!(message.contains(orchestrator.job_id()), "{message}");
    hold.release();
    other.get().unwrap();
}

#[test]
fn a_thread_bound_to_an_orchestrator_submits_no_child_for_it() {
    let host = Host::new();
    let dispatcher = host.dispatcher.clone();
    let orchestrator = host.submit(doer_fn(move |context| {
        let (dispatcher, me) = (dispatcher.clone(), JobContext::clone(context));
        let bound = context.bind(move || dispatcher.submit(&me, nothing()));
        Ok(thread::spawn(bound).join().unwrap()?)
    }));
    let message = system_refusal(&orchestrator.get().unwrap());
    assert!(message.contains("runs on the thread of"), "{message}");
}

// case SUB-05
#[test]
fn a_child_carries_the_type_of_its_caller() {
    struct Caller;
    impl Doer for Caller {
        type Output = Vec<Option<MetadataValue>>;
        fn execute(&mut self, context: &OrchestratorContext) -> Result<Self::Output, JobError> {
            let children = [context.submit(nothing())?, governor::submit(nothing())?];
            JobHandle::join_all(&children)?;
            Ok(children
                .iter()
                .map(|child| {
                    child
                        .snapshot()
                        .metadata()
                        .get(Metadata::CALLER_CLASS)
                        .cloned()
                })
                .collect())
        }
    }
    let host = Host::new();
    let stamped = host.submit(Caller).get().unwrap();
    let expected = MetadataValue::from(std::any::type_name::<Caller>());
    assert_eq!(*stamped, vec![Some(expected); 2]);
    let root = host.submit(nothing()).snapshot();
    assert_eq!(root.metadata().get("obs.caller_class"), None);
}

// case SUB-07
#[test]
fn a_dependency_that_would_close_a_cycle_is_refused_by_submit_itself() {
    let host = Host::new();
    let (give, given) = mpsc::channel::<JobHandle<String>>();
    let ancestor = host.submit(doer_fn(move |context| {
        let me = given.recv().unwrap();
        let between = context.submit_with(nothing()).after(&me).submit();
        let Err(SubmitError::Cycle { path }) = &between else {
            panic!("submitted: {between:?}")
        };
        assert_eq!(path.len(), 3);
        assert_eq!(path[0], path[2]);
        assert_eq!(path[1], me.job_id());
        Ok(between.unwrap_err().to_string())
    }));
    give.send(ancestor.clone()).unwrap();
    let message = ancestor.get().unwrap();
    assert!(message.contains("Cycle detected"), "{message}");
    assert!(message.contains(ancestor.job_id()), "{message}");
}

#[test]
fn a_cycle_through_another_job_names_it_too() {
    let host = Host::new();
    let (give, given) = mpsc::channel::<(JobHandle<()>, JobHandle<()>)>();
    let ancestor = host.submit(doer_fn(move |context| {
        let (me, waits_for_me) = given.recv().unwrap();
        let refused = context.submit_with(nothing()).after(&waits_for_me).submit();
        let Err(SubmitError::Cycle { path }) = refused else {
            panic!("submitted")
        };
        assert_eq!(path[1..3], [waits_for_me.job_id(), me.job_id()]);
        assert_eq!(path[0], path[3]);
        Ok(())
    }));
    let waits = host
        .dispatcher
        .submit_with(&host.workflow, nothing())
        .after(&ancestor)
        .submit()
        .unwrap();
    give.send((ancestor.clone(), waits.clone())).unwrap();
    ancestor.get().unwrap();
    waits.get().unwrap();
}

#[test]
fn a_job_may_depend_on_an_ancestor_that_is_over() {
    let host = Host::new();
    let (give, given) = mpsc::channel::<JobHandle<()>>();
    let (answer, answers) = mpsc::channel();
    let ancestor = host.submit(doer_fn(move |context| {
        let (parent, answer) = (given.recv().unwrap(), answer.clone());
        let _child = context.submit(doer_fn(move |context| {
            while !parent.is_settled() {
                thread::yield_now();
            }
            let child = context.submit_with(nothing()).after(&parent).submit()?;
            answer.send(child).unwrap();
            Ok(())
        }))?;
        Ok(())
    }));
    give.send(ancestor.clone()).unwrap();
    answers.recv().unwrap().get().unwrap();
}

// case SUB-10
#[test]
fn metadata_of_the_submission_is_there_before_the_job_is_announced() {
    let host = Host::new();
    let handle = host
        .dispatcher
        .submit_with(&host.workflow, nothing())
        .metadata("seeded", "yes")
        .submit()
        .unwrap();
    handle.get().unwrap();
    host.kinds(&handle);
    let events = host.events.events_of(handle.job_id());
    let Some(Event::Lifecycle(LifecycleEvent::Scheduled(scheduled))) = events.first().map(|e| &**e)
    else {
        panic!("the first event is {:?}", events.first())
    };
    assert_eq!(
        scheduled.snapshot.metadata().get("seeded"),
        Some(&MetadataValue::from("yes"))
    );
}

#[test]
fn nobody_but_the_runtime_notes_facts_under_its_keys() {
    let host = Host::new();
    let is_refused = |error: &JobError| {
        matches!(error.kind(), ErrorKind::InvalidInput { .. })
            && error.to_string().contains("obs.guards_input")
    };
    let handle = host
        .dispatcher
        .submit_with(&host.workflow, nothing())
        .metadata(Metadata::GUARDS_INPUT, 7)
        .submit()
        .unwrap();
    assert!(is_refused(&handle.get().unwrap_err()));
    assert_eq!(
        host.kinds(&handle),
        [EventKind::JobFailed, EventKind::WorkflowComplete]
    );
    // Nor is it told as if it were one, to anybody.
    assert!(handle.snapshot().metadata().is_empty());
    for event in host.events.events_of(handle.job_id()) {
        let snapshot = event.snapshot().unwrap();
        assert!(snapshot.metadata().is_empty(), "{snapshot:?}");
    }
    let noting = host.submit(job_fn(JobRequirements::none, |_, context| {
        let refused = context.note(Metadata::GUARDS_INPUT, 7).unwrap_err();
        // What only looks like one is the user's.
        context.note("obs", 1)?;
        context.note("observed.by", "me")?;
        Ok(refused)
    }));
    assert!(is_refused(&noting.get().unwrap()));
    let snapshot = noting.snapshot();
    let noted = |key| snapshot.metadata().get(key).cloned();
    assert_eq!(noted(Metadata::GUARDS_INPUT), Some(MetadataValue::from(0)));
    assert_eq!(noted("observed.by"), Some(MetadataValue::from("me")));
}

// case SUB-15
#[test]
fn a_second_start_changes_nothing() {
    let host = Host::new();
    host.dispatcher.start().unwrap();
    assert!(host.dispatcher.is_running());
    let inside = host.submit(job_fn(JobRequirements::none, |_, _| {
        Ok(governor::is_running())
    }));
    assert!(*inside.get().unwrap());
    assert!(!governor::is_running(), "this thread runs no job");
    assert!(matches!(
        governor::submit(nothing()),
        Err(SubmitError::OutsideJob)
    ));
}

// case SUB-16
#[test]
fn before_the_start_and_after_the_shutdown_nothing_is_taken() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    let workflow = Workflow::new("alice", "test").unwrap();
    let early = dispatcher.submit(&workflow, nothing()).unwrap_err();
    assert!(matches!(early, SubmitError::NotStarted));
    assert!(matches!(
        JobError::from(early).kind(),
        ErrorKind::IllegalState { .. }
    ));
    let early = dispatcher.submit_delayed(Duration::ZERO, &workflow, nothing());
    assert!(matches!(early.unwrap_err(), SubmitError::NotStarted));

    dispatcher.start().unwrap();
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    let late = dispatcher.submit(&workflow, nothing()).unwrap_err();
    assert!(matches!(late, SubmitError::ShutDown));
    assert!(matches!(
        JobError::from(late).kind(),
        ErrorKind::IllegalState { .. }
    ));
}

// case SUB-17
#[test]
fn a_job_that_declares_something_and_no_timeout_is_refused() {
    let host = Host::new();
    let log = Log::default();
    let account = Account::new("account", Replenishment::Release, &log);
    let endless = job_fn(
        move || JobRequirements::none().limiter(&account, ()),
        |_, _| Ok(()),
    )
    .timeout(None);
    let handle = host.submit(endless);
    let message = system_refusal(&handle);
    assert!(message.contains("timeout"), "{message}");
    assert_eq!(log.lines(), Vec::<String>::new());
    assert_eq!(
        host.kinds(&handle),
        [EventKind::JobFailed, EventKind::WorkflowComplete]
    );

    let holds_nothing = job_fn(JobRequirements::none, |_, _| Ok(())).timeout(None);
    host.submit(holds_nothing).get().unwrap();
}

// case SUB-20
#[test]
fn a_thread_outside_any_job_submits_a_root_and_waits_for_it() {
    let host = Host::new();
    let handle = host.submit(job_fn(JobRequirements::none, |_, _| Ok(42)));
    assert_eq!(*handle.get().unwrap(), 42);
    assert!(handle.snapshot().is_root());
}

#[test]
fn requirements_are_asked_once_at_submit_and_once_per_attempt() {
    struct Asked {
        by: Arc<Mutex<Vec<thread::ThreadId>>>,
        attempts: Arc<AtomicUsize>,
    }
    impl Job for Asked {
        type Output = thread::ThreadId;
        fn requirements(&self) -> JobRequirements {
            self.by.lock().unwrap().push(thread::current().id());
            JobRequirements::none()
        }
        fn execute(
            &mut self,
            _: &JobResources,
            _: &JobContext,
        ) -> Result<thread::ThreadId, JobError> {
            if self.attempts.fetch_add(1, Ordering::SeqCst) == 0 {
                let again = RetrySignal::correction("m", 1, JobError::correctable("once more"));
                return Err(again.into());
            }
            Ok(thread::current().id())
        }
    }
    let host = Host::new();
    let by = Arc::new(Mutex::new(Vec::new()));
    let handle = host.submit(Asked {
        by: Arc::clone(&by),
        attempts: Arc::default(),
    });
    let own = *handle.get().unwrap();
    let here = thread::current().id();
    assert_eq!(*by.lock().unwrap(), [here, own, own]);
}
