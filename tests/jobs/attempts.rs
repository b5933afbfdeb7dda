//! One attempt, in order, and the order of steps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use nucleo_runtime::admission::{CountingGate, Replenishment};
use nucleo_runtime::db::DbResourceProvider;
use nucleo_runtime::events::{Event, EventKind, WorkflowComplete};
use nucleo_runtime::testing::{self, EventRecorder};
use nucleo_runtime::{
    Doer, ErrorKind, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements,
    JobResources, JobSnapshot, JobState, Metadata, MetadataValue, OrchestratorContext, RetrySignal,
    doer_fn, job_fn,
};

use crate::support::{Account, Fault, Host, Log, Recording, held};

/// A job whose hooks note what they see.
struct Hooked {
    requirements: Box<dyn Fn() -> JobRequirements + Send>,
    log: Log,
    answers: Vec<Result<&'static str, JobError>>,
    dispatcher: JobDispatcher,
    events: Arc<EventRecorder>,
}

impl Hooked {
    fn new(host: &Host, log: &Log, answers: Vec<Result<&'static str, JobError>>) -> Self {
        Self {
            requirements: Box::new(JobRequirements::none),
            log: log.clone(),
            answers,
            dispatcher: host.dispatcher.clone(),
            events: Arc::clone(&host.events),
        }
    }

    fn needing(mut self, requirements: impl Fn() -> JobRequirements + Send + 'static) -> Self {
        self.requirements = Box::new(requirements);
        self
    }

    /// The state, whether the job holds, and how many times it was told to have started and ended.
    fn note(&self, what: &str, context: &JobContext) {
        testing::quiesce(&self.dispatcher);
        let kinds = self.events.kinds_of(context.job_id());
        let count = |wanted: fn(EventKind) -> bool| kinds.iter().filter(|k| wanted(**k)).count();
        self.log.note(format!(
            "{what}: {} {} started {} ended {}",
            context.snapshot().state(),
            if JobContext::is_executing_with_resources() {
                "holding"
            } else {
                "free"
            },
            count(|kind| kind == EventKind::JobStarted),
            count(EventKind::is_terminal),
        ));
    }
}

impl Job for Hooked {
    type Output = &'static str;

    fn requirements(&self) -> JobRequirements {
        (self.requirements)()
    }

    fn pre_execute(&mut self, _: &JobResources, context: &JobContext) -> Result<(), JobError> {
        self.note("pre", context);
        Ok(())
    }

    fn execute(
        &mut self,
        _: &JobResources,
        context: &JobContext,
    ) -> Result<&'static str, JobError> {
        self.note("execute", context);
        self.answers.remove(0)
    }

    fn post_execute(&mut self, outcome: Result<&&'static str, &JobError>, context: &JobContext) {
        let seen = outcome.map_or_else(ToString::to_string, |value| (*value).to_owned());
        self.note(&format!("post of '{seen}'"), context);
    }
}

fn gate(name: &str) -> Arc<CountingGate> {
    Arc::new(CountingGate::new(name, 1).unwrap())
}

// case EXE-01
#[test]
fn hooks_run_once_the_first_with_the_resources_the_last_with_the_result() {
    let host = Host::new();
    let log = Log::default();
    let permit = gate("permit");
    let needed = Arc::clone(&permit);
    let job = Hooked::new(&host, &log, vec![Ok("done")])
        .needing(move || JobRequirements::none().permit(&needed));
    assert_eq!(*host.submit(job).get().unwrap(), "done");
    assert_eq!(
        log.lines(),
        [
            "pre: SCHEDULED holding started 0 ended 0",
            "execute: RUNNING holding started 1 ended 0",
            "post of 'done': RUNNING free started 1 ended 0",
        ]
    );
    assert_eq!(permit.in_use(), 0);
}

// case EXE-16
#[test]
fn the_last_hook_runs_on_failure_too_after_the_release_and_before_the_end_is_told() {
    let host = Host::new();
    let log = Log::default();
    let permit = gate("permit");
    let job = Hooked::new(&host, &log, vec![Err(JobError::correctable("wrong"))])
        .needing(move || JobRequirements::none().permit(&permit));
    host.submit(job).get().unwrap_err();
    assert_eq!(
        log.lines()[2],
        "post of 'wrong': RUNNING free started 1 ended 0"
    );
}

// case EXE-17
#[test]
fn the_first_hook_runs_once_per_attempt_before_the_start_is_told() {
    let host = Host::new();
    let log = Log::default();
    let permit = gate("permit");
    let again = || RetrySignal::correction("m", 1, JobError::correctable("again")).into();
    let job = Hooked::new(&host, &log, vec![Err(again()), Err(again()), Ok("third")])
        .needing(move || JobRequirements::none().permit(&permit));
    let handle = host.submit(job);
    assert_eq!(*handle.get().unwrap(), "third");
    assert_eq!(handle.snapshot().attempt(), 3);
    assert_eq!(
        log.lines(),
        [
            "pre: SCHEDULED holding started 0 ended 0",
            "execute: RUNNING holding started 1 ended 0",
            "pre: RUNNING holding started 1 ended 0",
            "execute: RUNNING holding started 2 ended 0",
            "pre: RUNNING holding started 2 ended 0",
            "execute: RUNNING holding started 3 ended 0",
            "post of 'third': RUNNING free started 3 ended 0",
        ]
    );
}

fn one_step(
    log: &Log,
) -> impl Fn(&JobResources, &JobContext) -> Result<&'static str, JobError> + use<> {
    let log = log.clone();
    move |_, _| {
        log.note("execute");
        Ok("done")
    }
}

// case EXE-02
#[test]
fn a_transaction_is_begun_committed_and_awaited_before_the_close() {
    let host = Host::new();
    let log = Log::default();
    let orders = Arc::new(Recording::new("db", &log));
    let job = job_fn(
        move || JobRequirements::none().provider(&orders).transaction(),
        one_step(&log),
    );
    host.submit(job).get().unwrap();
    assert_eq!(
        log.lines(),
        [
            "db.acquire",
            "db.begin",
            "execute",
            "db.commit",
            "db.await",
            "db.close"
        ]
    );
}

#[test]
fn without_a_transaction_nothing_is_begun() {
    let host = Host::new();
    let log = Log::default();
    let orders = Arc::new(Recording::new("db", &log));
    let job = job_fn(
        move || JobRequirements::none().provider(&orders),
        one_step(&log),
    );
    host.submit(job).get().unwrap();
    assert_eq!(log.lines(), ["db.acquire", "execute", "db.close"]);
}

// case EXE-04
#[test]
fn a_rollback_that_fails_is_attached_to_the_failure_and_does_not_replace_it() {
    let host = Host::new();
    let log = Log::default();
    let orders = Arc::new(Recording::new("db", &log).with("rollback", Fault::Error));
    let job = job_fn(
        move || JobRequirements::none().provider(&orders).transaction(),
        |_, _| Err::<(), _>(JobError::correctable("work failed")),
    );
    let error = host.submit(job).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Correctable { .. }));
    assert_eq!(error.to_string(), "work failed");
    let [rollback] = error.attached() else {
        panic!("attached: {:?}", error.attached())
    };
    assert!(rollback.to_string().contains("rollback failed"));
    assert_eq!(
        log.lines(),
        ["db.acquire", "db.begin", "db.rollback", "db.close"]
    );
}

#[test]
fn a_commit_that_fails_fails_the_job() {
    let host = Host::new();
    let log = Log::default();
    let orders = Arc::new(Recording::new("db", &log).with("commit", Fault::Error));
    let job = job_fn(
        move || JobRequirements::none().provider(&orders).transaction(),
        one_step(&log),
    );
    let handle = host.submit(job);
    let error = handle.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    assert!(error.to_string().contains("'db'"), "{error}");
    assert_eq!(handle.snapshot().state(), JobState::Failed);
    assert_eq!(
        log.lines(),
        [
            "db.acquire",
            "db.begin",
            "execute",
            "db.commit",
            "db.rollback",
            "db.close"
        ]
    );
}

#[test]
fn a_begin_that_fails_fails_the_job_before_it_executes() {
    let host = Host::new();
    let log = Log::default();
    let first = Arc::new(Recording::new("first", &log));
    let second = Arc::new(Recording::new("second", &log).with("begin", Fault::Error));
    let gates = [first.admission(), second.admission()];
    let job = job_fn(
        move || {
            JobRequirements::none()
                .provider(&first)
                .provider(&second)
                .transaction()
        },
        one_step(&log),
    );
    let error = host.submit(job).get().unwrap_err();
    assert!(error.to_string().contains("begin failed"), "{error}");
    assert!(!log.lines().contains(&"execute".to_owned()));
    assert!(
        log.lines().contains(&"first.rollback".to_owned()),
        "what was begun is rolled back: {:?}",
        log.lines()
    );
    assert_eq!(gates.map(|gate| gate.in_use()), [0, 0]);
}

// case EXE-05
#[test]
fn a_root_that_succeeds_is_told_in_four_events() {
    let host = Host::new();
    let handle = host.submit(job_fn(JobRequirements::none, |_, _| Ok(())));
    handle.get().unwrap();
    assert_eq!(
        host.kinds(&handle),
        [
            EventKind::JobScheduled,
            EventKind::JobStarted,
            EventKind::JobCompleted,
            EventKind::WorkflowComplete,
        ]
    );
    let Event::Workflow(WorkflowComplete { success: true, .. }) =
        **host.events.events_of(handle.job_id()).last().unwrap()
    else {
        panic!("the workflow did not end well")
    };
}

// case EXE-06
// case F19
#[test]
fn a_panic_fails_the_job_with_its_text_and_the_runtime_lives() {
    let host = Host::new();
    let handle = host.submit(job_fn(JobRequirements::none, |_, _| -> Result<(), _> {
        panic!("a defect of the job")
    }));
    let error = handle.get().unwrap_err();
    let ErrorKind::System { component, details } = error.kind() else {
        panic!("{error:?}")
    };
    assert_eq!(component, "job");
    assert!(details.contains("a defect of the job"), "{details}");
    assert_eq!(
        host.kinds(&handle),
        [
            EventKind::JobScheduled,
            EventKind::JobStarted,
            EventKind::JobFailed,
            EventKind::WorkflowComplete,
        ]
    );
    let Event::Workflow(WorkflowComplete { success: false, .. }) =
        **host.events.events_of(handle.job_id()).last().unwrap()
    else {
        panic!("the workflow ended well")
    };
    let next = host.submit(job_fn(JobRequirements::none, |_, _| Ok("alive")));
    assert_eq!(*next.get().unwrap(), "alive");
}

// case EXE-07
#[test]
fn a_workflow_observer_sees_its_workflow_to_the_end_and_nothing_after() {
    let host = Host::new();
    let other = nucleo_runtime::Workflow::new("bob", "other").unwrap();
    for _ in 0..100 {
        let workflow = nucleo_runtime::Workflow::new("alice", "seen").unwrap();
        let (job, hold) = held(JobRequirements::none);
        let root = host.dispatcher.submit(&workflow, job).unwrap();
        hold.wait_until_running();
        let seen = EventRecorder::new();
        root.register_workflow_observer(seen.clone()).unwrap();
        let unrelated = host
            .dispatcher
            .submit(&other, job_fn(JobRequirements::none, |_, _| Ok(())))
            .unwrap();
        unrelated.get().unwrap();
        hold.release();
        root.get().unwrap();

        let later = host
            .dispatcher
            .submit(&workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
            .unwrap();
        later.get().unwrap();
        testing::quiesce(&host.dispatcher);
        let kinds: Vec<_> = seen.events().iter().map(|event| event.kind()).collect();
        assert_eq!(
            kinds,
            [EventKind::JobCompleted, EventKind::WorkflowComplete],
            "registered while it ran, gone at the settle"
        );
        root.register_workflow_observer(seen.clone()).unwrap();
        assert_eq!(host.dispatcher.bus().subscriptions().len(), 1);
    }
}

#[test]
fn a_workflow_observer_registered_while_the_job_is_queued_sees_all_four_events() {
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    let root = host
        .dispatcher
        .submit_with(&host.workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
        .after(&first)
        .submit()
        .unwrap();
    let seen = EventRecorder::new();
    root.register_workflow_observer(seen.clone()).unwrap();
    hold.release();
    root.get().unwrap();
    testing::quiesce(&host.dispatcher);
    assert_eq!(
        seen.kinds_of(root.job_id()),
        [
            EventKind::JobStarted,
            EventKind::JobCompleted,
            EventKind::WorkflowComplete
        ],
    );
}

// case EXE-09
#[test]
fn success_is_heard_while_the_permit_is_held() {
    let host = Host::new();
    let log = Log::default();
    let account = Account::new("account", Replenishment::Release, &log);
    let job = job_fn(
        move || JobRequirements::none().limiter(&account, ()),
        one_step(&log),
    );
    host.submit(job).get().unwrap();
    assert_eq!(
        log.lines(),
        ["account.take", "execute", "account.success", "account.give"]
    );
}

// case EXE-10
#[test]
fn an_upstream_failure_is_heard_once_and_a_success_once() {
    let host = Host::new();
    let log = Log::default();
    let account = Account::new("account", Replenishment::Release, &log);
    let submit = |answer: Result<(), JobError>| {
        let account = Arc::clone(&account);
        let mut answer = Some(answer);
        let job = job_fn(
            // Twice on one limiter: it hears once all the same.
            move || {
                JobRequirements::none()
                    .limiter(&account, ())
                    .limiter(&account, ())
            },
            move |_, _| answer.take().unwrap(),
        );
        let _ = host.submit(job).get();
    };
    submit(Err(JobError::external("PubChem", "broken")));
    assert_eq!(
        log.lines(),
        ["account.take", "account.error of PubChem", "account.give"]
    );
    submit(Ok(()));
    assert_eq!(
        log.lines()[3..],
        ["account.take", "account.success", "account.give"]
    );
    submit(Err(JobError::correctable("not the service's fault")));
    assert_eq!(log.lines()[6..], ["account.take", "account.give"]);
}

// case EXE-14
#[test]
fn an_attempt_takes_its_steps_in_order() {
    struct Whole {
        orders: Arc<Recording>,
        account: Arc<Account>,
        first: JobHandle<&'static str>,
        log: Log,
    }
    impl Drop for Whole {
        fn drop(&mut self) {
            self.log.note("dropped");
        }
    }
    impl Job for Whole {
        type Output = ();
        fn requirements(&self) -> JobRequirements {
            self.log.note(format!(
                "requirements, after {}",
                self.first.snapshot().state()
            ));
            JobRequirements::none()
                .limiter(&self.account, ())
                .provider(&self.orders)
                .transaction()
        }
        fn pre_execute(&mut self, _: &JobResources, context: &JobContext) -> Result<(), JobError> {
            let deadline = context.remaining_time().is_some();
            self.log.note(format!("pre, with a deadline: {deadline}"));
            Ok(())
        }
        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            self.log.note("execute");
            Ok(())
        }
        fn post_execute(&mut self, _: Result<&(), &JobError>, context: &JobContext) {
            let deadline = context.remaining_time().is_some();
            self.log.note(format!("post, with a deadline: {deadline}"));
        }
    }
    let host = Host::new();
    let log = Log::default();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    let whole = Whole {
        orders: Arc::new(Recording::new("db", &log)),
        account: Account::new("account", Replenishment::Release, &log),
        first: first.clone(),
        log: log.clone(),
    };
    hold.wait_until_running();
    let handle = host
        .dispatcher
        .submit_with(&host.workflow, whole)
        .after(&first)
        .submit()
        .unwrap();
    testing::quiesce(&host.dispatcher);
    assert_eq!(log.lines(), ["requirements, after RUNNING"]);
    hold.release();
    handle.get().unwrap();
    assert_eq!(
        log.lines()[1..],
        [
            "requirements, after COMPLETED",
            "account.take",
            "db.acquire",
            "pre, with a deadline: true",
            "db.begin",
            "execute",
            "db.commit",
            "db.await",
            "account.success",
            "db.close",
            "account.give",
            "post, with a deadline: false",
            "dropped",
        ]
    );
}

// case EXE-15
#[test]
fn that_nothing_guarded_a_job_is_noted() {
    let host = Host::new();
    let noted = host.submit(job_fn(JobRequirements::none, |_, context| {
        let snapshot = context.snapshot();
        Ok(snapshot.metadata().get(Metadata::GUARDS_INPUT).cloned())
    }));
    assert_eq!(*noted.get().unwrap(), Some(MetadataValue::Integer(0)));
}

#[test]
fn whoever_is_woken_by_get_finds_the_job_over() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let host = Host::new();
    let permit = gate("permit");
    let dropped = Arc::new(AtomicUsize::new(0));
    for round in 1..=200 {
        let (needed, value) = (Arc::clone(&permit), Dropped(Arc::clone(&dropped)));
        let handle = host.submit(job_fn(
            move || JobRequirements::none().permit(&needed),
            move |_, _| {
                let _ = &value;
                Ok(())
            },
        ));
        handle.get().unwrap();
        assert_eq!(permit.in_use(), 0);
        assert_eq!(dropped.load(Ordering::SeqCst), round);
        assert_eq!(host.dispatcher.job_count(), 0);
        assert_eq!(handle.snapshot().state(), JobState::Completed);
        assert!(!handle.cancel("too late"));
        assert_eq!(
            host.kinds(&handle).last(),
            Some(&EventKind::WorkflowComplete)
        );
    }
}

#[test]
fn a_failure_that_was_a_childs_cancellation_is_no_cancellation_of_the_parent() {
    let host = Host::new();
    let parent = host.submit(doer_fn(|context| {
        let (job, hold) = held(JobRequirements::none);
        let child = context.submit(job)?;
        hold.wait_until_running();
        assert!(child.cancel("enough"));
        hold.release();
        child.get()?;
        Ok(())
    }));
    let error = parent.get().unwrap_err();
    assert!(error.is_cancelled(), "the child's, as it was passed on");
    assert_eq!(parent.snapshot().state(), JobState::Failed);
    assert!(host.kinds(&parent).contains(&EventKind::JobFailed));
}

fn ordinal(snapshot: &JobSnapshot) -> Option<i64> {
    snapshot
        .metadata()
        .get(Metadata::ITERATION)
        .and_then(MetadataValue::as_integer)
}

fn step() -> impl Job<Output = ()> {
    job_fn(JobRequirements::none, |_, _| Ok(()))
}

// case ORD-01
// case ORD-02
#[test]
fn children_carry_the_ordinal_of_the_step_that_submitted_them() {
    struct Steps(mpsc::Sender<Vec<Option<i64>>>);
    impl Doer for Steps {
        type Output = ();
        fn execute(&mut self, context: &OrchestratorContext) -> Result<(), JobError> {
            let before = context.submit_in_current_step(step())?;
            let a = context.submit_in_step(step())?;
            a.get()?;
            let b = context.submit_in_step(step())?;
            b.get()?;
            assert_eq!(context.next_step(), 3);
            let c = context.submit_in_current_step(step())?;
            let d = context
                .submit_with(step())
                .after(&c)
                .metadata("why", "nightly")
                .in_current_step()
                .submit()?;
            let raw = context.submit(step())?;
            let all = [before, a, b, c, d, raw];
            JobHandle::join_all(&all)?;
            let ordinals = all.iter().map(|child| ordinal(&child.snapshot())).collect();
            self.0.send(ordinals).unwrap();
            Ok(())
        }
    }
    let host = Host::new();
    let (told, ordinals) = mpsc::channel();
    host.submit(Steps(told)).get().unwrap();
    assert_eq!(
        ordinals.recv().unwrap(),
        [Some(0), Some(1), Some(2), Some(3), Some(3), None]
    );
}

// case ORD-04
#[test]
fn ordinals_count_for_each_parent_and_order_its_children_with_their_starts() {
    fn sub(name: &'static str) -> impl Doer<Output = ()> {
        doer_fn(move |context| {
            context
                .submit_in_step(job_fn(JobRequirements::none, |_, _| Ok(())).named("one"))?
                .get()?;
            context
                .submit_in_step(job_fn(JobRequirements::none, |_, _| Ok(())).named("two"))?
                .get()?;
            Ok(())
        })
        .named(name)
    }
    let host = Host::new();
    let clock = host.clock.clone();
    let root = host.submit(
        doer_fn(move |context| {
            context.next_step();
            // Submitted the other way round than they start.
            let (late, hold) = held(JobRequirements::none);
            let late = context.submit(late)?;
            hold.wait_until_running();
            let second = context
                .submit_with(sub("second"))
                .after(&late)
                .in_current_step()
                .submit()?;
            context.submit_in_current_step(sub("first"))?.get()?;
            clock.advance(std::time::Duration::from_secs(1));
            hold.release();
            second.get()?;
            Ok(())
        })
        .named("root"),
    );
    root.get().unwrap();
    host.kinds(&root);

    let mut last: BTreeMap<String, JobSnapshot> = BTreeMap::new();
    for event in host.events.events() {
        if let Some(snapshot) = event.snapshot().filter(|_| event.is_terminal()) {
            last.insert(snapshot.job_id().to_owned(), snapshot.clone());
        }
    }
    fn tree(of: &str, all: &BTreeMap<String, JobSnapshot>, out: &mut Vec<String>) {
        let mut children: Vec<_> = all
            .values()
            .filter(|job| job.parent_id() == Some(of) && ordinal(job).is_some())
            .collect();
        children.sort_by_key(|job| (ordinal(job), job.started_at()));
        for child in children {
            out.push(format!(
                "{}:{}",
                child.display_name(),
                ordinal(child).unwrap_or_default()
            ));
            tree(child.job_id(), all, out);
        }
    }
    let mut walked = Vec::new();
    tree(root.job_id(), &last, &mut walked);
    assert_eq!(
        walked,
        ["first:1", "one:1", "two:2", "second:1", "one:1", "two:2"]
    );
}

// case ORD-05
#[test]
fn an_orchestrator_that_holds_nothing_waits_for_its_child() {
    let host = Host::new();
    let parent = host.submit(doer_fn(|context| {
        assert!(!JobContext::is_executing_with_resources());
        let child = context.submit(job_fn(JobRequirements::none, |_, _| Ok("done")))?;
        Ok(*child.get()?)
    }));
    assert_eq!(*parent.get().unwrap(), "done");
}

#[test]
fn what_an_attempt_left_in_the_job_is_there_in_the_next() {
    let host = Host::new();
    let mut seen = Vec::new();
    let job = job_fn(JobRequirements::none, move |_, context| {
        seen.push(context.snapshot().attempt());
        if seen.len() < 3 {
            let again = RetrySignal::correction("m", 1, JobError::correctable("again"));
            return Err(again.into());
        }
        Ok(seen.clone())
    });
    assert_eq!(*host.submit(job).get().unwrap(), [1, 2, 3]);
}

#[test]
fn a_parent_that_does_not_wait_leaves_its_children_running() {
    let host = Host::new();
    let hold = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&hold);
    let parent = host.submit(doer_fn(move |context| {
        let (job, hold) = held(JobRequirements::none);
        let child = context.submit(job)?;
        hold.wait_until_running();
        *kept.lock().unwrap() = Some(hold);
        Ok(child)
    }));
    let child = parent.get().unwrap();
    assert_eq!(child.snapshot().state(), JobState::Running);
    hold.lock().unwrap().take().unwrap().release();
    assert_eq!(*child.get().unwrap(), "held");
    assert_eq!(
        host.kinds(&child),
        [
            EventKind::JobScheduled,
            EventKind::JobStarted,
            EventKind::JobCompleted
        ]
    );
}

#[test]
fn a_tree_is_cancelled_at_any_depth_also_under_parents_that_are_over() {
    let host = Host::new();
    let threads = host.dispatcher.threads().live;
    let (give, holds) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let root = host.submit(doer_fn(move |context| {
        let give = give.clone();
        let middle = context.submit(doer_fn(move |context| {
            let (job, hold) = held(JobRequirements::none);
            let leaf = context.submit(job)?;
            hold.wait_until_running();
            give.send((leaf, hold)).unwrap();
            Ok(())
        }))?;
        middle.get()?;
        // Nobody has the middle one any more.
        drop(middle);
        released.recv().unwrap();
        Ok(())
    }));
    let (leaf, hold) = holds.recv().unwrap();
    // The root's and the leaf's threads are left: the middle one is gone without a trace.
    while host.dispatcher.threads().live > threads + 2 {
        std::thread::yield_now();
    }
    let unrelated = held(JobRequirements::none);
    let unrelated = (host.submit(unrelated.0), unrelated.1);
    let middle = leaf.snapshot().parent_id().unwrap().to_owned();

    assert_eq!(host.dispatcher.cancel_tree(leaf.job_id(), "leaf"), 1);
    assert_eq!(
        host.dispatcher.cancel_tree(&middle, "middle"),
        1,
        "the leaf"
    );
    assert_eq!(host.dispatcher.cancel_tree(root.job_id(), "root"), 2);
    assert_eq!(host.dispatcher.cancel_tree("no such job", "at all"), 0);
    hold.release();
    release.send(()).unwrap();
    assert!(leaf.get().unwrap_err().is_cancelled());
    assert!(root.get().unwrap_err().is_cancelled());
    unrelated.1.release();
    assert_eq!(*unrelated.0.get().unwrap(), "held");
    assert_eq!(host.dispatcher.cancel_tree(root.job_id(), "over"), 0);
}

#[test]
fn a_workflow_is_cancelled_whole_and_no_other() {
    let host = Host::new();
    let (running, hold) = held(JobRequirements::none);
    let running = host.submit(running);
    hold.wait_until_running();
    let queued = host
        .dispatcher
        .submit_with(&host.workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
        .after(&running)
        .submit()
        .unwrap();
    let workflow = nucleo_runtime::Workflow::new("bob", "other").unwrap();
    let (other, others_hold) = held(JobRequirements::none);
    let other = host.dispatcher.submit(&workflow, other).unwrap();
    let count = |id: &str| host.dispatcher.cancel_workflow(id, "enough");
    assert_eq!(count(host.workflow.id()), 2);
    assert!(queued.get().unwrap_err().is_cancelled());
    assert_eq!(count(host.workflow.id()), 1, "the queued one has settled");
    hold.release();
    assert!(running.get().unwrap_err().is_cancelled());
    assert_eq!(count(host.workflow.id()), 0);
    others_hold.release();
    assert_eq!(*other.get().unwrap(), "held");
}

/// A job whose last hook is stuck until the test lets it go.
struct StuckHook {
    entered: mpsc::Sender<()>,
    release: mpsc::Receiver<()>,
}

impl Job for StuckHook {
    type Output = &'static str;

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<&'static str, JobError> {
        Ok("done")
    }

    fn post_execute(&mut self, _: Result<&&'static str, &JobError>, _: &JobContext) {
        self.entered.send(()).unwrap();
        let _ = self.release.recv();
    }
}

fn stuck_hook(host: &Host) -> (JobHandle<&'static str>, mpsc::Sender<()>) {
    let (entered, is_in) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let handle = host.submit(StuckHook {
        entered,
        release: released,
    });
    is_in.recv().unwrap();
    (handle, release)
}

#[test]
fn hooks_that_take_longer_than_their_budget_are_not_waited_for() {
    let host = Host::new();
    let (handle, release) = stuck_hook(&host);
    host.clock.advance(std::time::Duration::from_secs(29));
    testing::quiesce(&host.dispatcher);
    assert!(!handle.is_settled());
    host.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(*handle.get().unwrap(), "done");
    assert_eq!(host.dispatcher.job_count(), 0);
    drop(release);
    let kinds = host.kinds(&handle);
    assert_eq!(
        kinds[2..],
        [EventKind::JobCompleted, EventKind::WorkflowComplete]
    );
}

#[test]
fn a_shutdown_that_was_begun_from_inside_a_job_keeps_no_job_from_settling() {
    let host = Host::new();
    let (stuck, release) = stuck_hook(&host);
    let (held, hold) = held(JobRequirements::none);
    let held = host.submit(held);
    hold.wait_until_running();
    let dispatcher = host.dispatcher.clone();
    let ends_everything = host.submit(job_fn(JobRequirements::none, move |_, _| {
        Ok(dispatcher.shutdown(std::time::Duration::from_secs(3_600)))
    }));
    let ended = ends_everything.get().unwrap();
    assert_eq!(*ended, Err(nucleo_runtime::ShutdownError::FromInside));
    // The shutdown waits for the one that is held, for an hour; the hook has its budget meanwhile.
    host.clock.advance(std::time::Duration::from_secs(30));
    assert_eq!(*stuck.get().unwrap(), "done");
    drop(release);
    hold.release();
    assert_eq!(*held.get().unwrap(), "held");
}
