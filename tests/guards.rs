//! Guards: when they run, what they see, and that nothing passes unjudged.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::events::{Event, EventFilter, EventKind};
use nucleo_runtime::guard::{
    AdmissionGuard, AdmissionRequest, AuthGuard, ContentGuard, Gate, Guard, GuardPhase, Guards,
    JobInput, PayloadSizeCap, PiiDetection, PrincipalAllowList, Scope, TenantScope,
};
use nucleo_runtime::testing::{EventRecorder, quiesce};
use nucleo_runtime::{
    Doer, ErrorKind, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements,
    JobResources, JobSnapshot, JobState, JobType, ManualClock, Metadata, MetadataValue,
    OrchestratorContext, Workflow, doer_fn, governor, job_fn,
};

fn started() -> (JobDispatcher, Workflow) {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    (dispatcher, Workflow::new("test-user", "test").unwrap())
}

fn on_manual_clock() -> (JobDispatcher, Workflow, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let dispatcher = JobDispatcher::builder()
        .clock(clock.clone())
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    (
        dispatcher,
        Workflow::new("test-user", "test").unwrap(),
        clock,
    )
}

fn stop(dispatcher: &JobDispatcher) {
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

fn text(snapshot: &JobSnapshot, key: &str) -> Option<String> {
    Some(snapshot.metadata().get(key)?.as_text()?.to_owned())
}

fn number(snapshot: &JobSnapshot, key: &str) -> Option<i64> {
    snapshot
        .metadata()
        .get(key)
        .and_then(MetadataValue::as_integer)
}

/// The last that was told of each guard, in the order of their first events.
fn guards_heard(recorder: &EventRecorder) -> Vec<JobSnapshot> {
    let mut order: Vec<String> = Vec::new();
    let mut last: HashMap<String, JobSnapshot> = HashMap::new();
    for event in recorder.events() {
        let Some(snapshot) = event.snapshot() else {
            continue;
        };
        if snapshot.job_type() != JobType::Guardrail {
            continue;
        }
        let id = snapshot.job_id().to_owned();
        if last.insert(id.clone(), snapshot.clone()).is_none() {
            order.push(id);
        }
    }
    order.iter().map(|id| last[id].clone()).collect()
}

fn is_refusal(error: &JobError) -> bool {
    matches!(error.kind(), ErrorKind::Guardrail { .. })
}

/// Whether a refusal stands anywhere in an error's chain.
fn has_refusal(error: &JobError) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = next {
        if at.downcast_ref::<JobError>().is_some_and(is_refusal) {
            return true;
        }
        next = at.source();
    }
    false
}

#[derive(Debug, PartialEq)]
struct Order(String);

impl JobInput for Order {
    fn text(&self) -> Option<String> {
        Some(format!("{{\"order\":\"{}\"}}", self.0))
    }
}

type Work = dyn FnMut(&JobContext) -> Result<String, JobError> + Send;
type Judgment = Arc<dyn Fn(&Gate<'_>) -> Result<(), JobError> + Send + Sync>;

/// Judges orders, and what texts come out, by a closure; counts that it ran.
#[derive(Clone)]
struct Probe {
    judgment: Judgment,
    ran: Arc<AtomicUsize>,
    name: &'static str,
    timeout: Duration,
    scope: Option<Arc<dyn Scope>>,
    judges: bool,
    requirements: Arc<dyn Fn() -> JobRequirements + Send + Sync>,
}

fn probe(judgment: impl Fn(&Gate<'_>) -> Result<(), JobError> + Send + Sync + 'static) -> Probe {
    Probe {
        judgment: Arc::new(judgment),
        ran: Arc::default(),
        name: "Probe",
        timeout: Duration::from_secs(10),
        scope: None,
        judges: false,
        requirements: Arc::new(JobRequirements::none),
    }
}

fn passing() -> Probe {
    probe(|_| Ok(()))
}

fn refusing() -> Probe {
    probe(|_| Err(JobError::guardrail("not this one")))
}

impl Probe {
    fn runs(&self) -> usize {
        self.ran.load(Ordering::SeqCst)
    }

    fn judged(&self, gate: &Gate<'_>) -> Result<(), JobError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        (self.judgment)(gate)
    }
}

impl Guard for Probe {
    fn name(&self) -> Cow<'static, str> {
        self.name.into()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn requirements(&self) -> JobRequirements {
        (self.requirements)()
    }

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        self.scope.clone()
    }

    fn spawns_judges(&self) -> bool {
        self.judges
    }
}

impl ContentGuard for Probe {
    type Target = dyn Any;

    fn judge(&self, _: &dyn Any, gate: &Gate<'_>) -> Result<(), JobError> {
        self.judged(gate)
    }
}

impl AuthGuard for Probe {
    type Target = dyn Any;

    fn judge(&self, _: &dyn Any, principal: &str, gate: &Gate<'_>) -> Result<(), JobError> {
        assert_eq!(gate.principal(), Some(principal));
        self.judged(gate)
    }
}

impl AdmissionGuard for Probe {
    fn judge(&self, _: &AdmissionRequest, gate: &Gate<'_>) -> Result<(), JobError> {
        self.judged(gate)
    }
}

/// A tool with guards. Answers what it reads of its own count of guards.
struct GatedTool {
    guards: Guards,
    input: Option<Arc<Order>>,
    requirements: Box<dyn Fn() -> JobRequirements + Send>,
    work: Box<Work>,
    ran: Arc<AtomicUsize>,
}

fn gated(guards: Guards) -> GatedTool {
    GatedTool {
        guards,
        input: Some(Arc::new(Order("x".to_owned()))),
        requirements: Box::new(JobRequirements::none),
        work: Box::new(|context| {
            let applied = number(&context.snapshot(), Metadata::GUARDS_INPUT);
            Ok(format!("ran:{}:x", applied.unwrap()))
        }),
        ran: Arc::default(),
    }
}

fn answering(guards: Guards, answer: &'static str) -> GatedTool {
    GatedTool {
        work: Box::new(move |_| Ok(answer.to_owned())),
        ..gated(guards)
    }
}

impl Job for GatedTool {
    type Output = String;

    fn guards(&self) -> Guards {
        self.guards.clone()
    }

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(self.input.clone()?)
    }

    fn requirements(&self) -> JobRequirements {
        (self.requirements)()
    }

    fn execute(&mut self, _: &JobResources, context: &JobContext) -> Result<String, JobError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        (self.work)(context)
    }
}

// case GRD-10
// case GRD-11
// case GRD-04
// case GRD-09
#[test]
fn a_refused_input_never_reaches_the_tool_and_the_refusal_is_on_the_bus() {
    let (dispatcher, workflow) = started();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let tool = gated(Guards::none().input(refusing()));
    let ran = Arc::clone(&tool.ran);
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    let error = handle.get().unwrap_err();
    assert!(is_refusal(&error) && error.is_correctable());
    assert_eq!(error.llm_message(), "Guardrail violation: not this one");
    assert_ne!(error.explain_to_llm(), error.llm_message());
    assert_eq!(ran.load(Ordering::SeqCst), 0);

    quiesce(&dispatcher);
    let guards = guards_heard(&recorder);
    let [guard] = &guards[..] else {
        panic!("{guards:?}");
    };
    assert_eq!(guard.state(), JobState::Failed);
    assert_eq!(guard.parent_id(), Some(handle.job_id()));
    assert_eq!(
        text(guard, Metadata::GATES_JOB).as_deref(),
        Some(handle.job_id())
    );
    let phase = text(guard, Metadata::GATES_PHASE);
    assert_eq!(phase.as_deref(), Some("CONTENT_INPUT"));
    assert_eq!(
        text(guard, Metadata::GUARD_TARGET).as_deref(),
        Some("{\"order\":\"x\"}")
    );
    assert_eq!(
        text(guard, Metadata::GUARD_VERDICT).as_deref(),
        Some("FAIL")
    );
    assert_eq!(
        recorder.kinds_of(guard.job_id()),
        [
            EventKind::JobScheduled,
            EventKind::JobStarted,
            EventKind::JobFailed
        ]
    );
    // The target stood there before it ran, the verdict did not.
    let first = recorder.events_of(guard.job_id())[0].snapshot().cloned();
    let first = first.unwrap();
    assert!(text(&first, Metadata::GUARD_TARGET).is_some());
    assert_eq!(text(&first, Metadata::GUARD_VERDICT), None);
    // The gated job never started.
    assert_eq!(
        recorder.kinds_of(handle.job_id()),
        [
            EventKind::JobScheduled,
            EventKind::JobFailed,
            EventKind::WorkflowComplete
        ]
    );
    stop(&dispatcher);
}

// case GRD-12
// case EXE-12
#[test]
fn a_refused_output_is_not_delivered() {
    struct NoSecrets;

    impl Guard for NoSecrets {}

    impl ContentGuard for NoSecrets {
        type Target = str;

        fn judge(&self, text: &str, _: &Gate<'_>) -> Result<(), JobError> {
            if text.contains("secret") {
                return Err(JobError::guardrail("the answer tells too much"));
            }
            Ok(())
        }
    }

    let (dispatcher, workflow) = started();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let tool = answering(Guards::none().output(NoSecrets), "a secret");
    let ran = Arc::clone(&tool.ran);
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    let error = handle.get().unwrap_err();
    assert!(is_refusal(&error));
    assert!(std::error::Error::source(&error).is_none());
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    quiesce(&dispatcher);
    assert_eq!(
        recorder.kinds_of(handle.job_id()),
        [
            EventKind::JobScheduled,
            EventKind::JobStarted,
            EventKind::JobFailed,
            EventKind::WorkflowComplete
        ]
    );
    let events = recorder.events_of(handle.job_id());
    assert!(
        !events
            .iter()
            .any(|event| format!("{event:?}").contains("a secret"))
    );

    let tool = answering(Guards::none().output(NoSecrets), "the weather");
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    assert_eq!(*handle.get().unwrap(), "the weather");
    let applied = number(&handle.snapshot(), Metadata::GUARDS_OUTPUT);
    assert_eq!(applied, Some(1));
    stop(&dispatcher);
}

// case GRD-14
// case GRD-06
#[test]
fn a_list_of_principals_asks_on_whose_behalf_the_job_runs() {
    let (dispatcher, workflow) = started();
    let list = || Guards::none().auth(PrincipalAllowList::new(["alice"]));
    let refused = dispatcher.submit(&workflow, gated(list())).unwrap();
    let error = refused.get().unwrap_err();
    assert!(is_refusal(&error), "{error}");
    assert!(error.llm_message().contains("test-user"));
    let alice = Workflow::new("alice", "test").unwrap();
    let allowed = dispatcher.submit(&alice, gated(list())).unwrap();
    assert_eq!(*allowed.get().unwrap(), "ran:1:x");
    // Without a dispatcher there is nobody.
    assert_eq!(Gate::outside().principal(), None);
    assert!(Gate::outside().gated().is_none());
    assert!(Gate::outside().resources().is_err());
    stop(&dispatcher);
}

// case GRD-15
#[test]
fn a_guard_that_breaks_fails_the_job_with_its_own_error() {
    let (dispatcher, workflow) = started();
    let judgments: [(&str, Probe); 3] = [
        (
            "the table is gone",
            probe(|_| Err(JobError::external("orders", "the table is gone"))),
        ),
        ("no judgment today", probe(|_| panic!("no judgment today"))),
        (
            "Only orchestrators",
            probe(|_| {
                let child = governor::submit(job_fn(JobRequirements::none, |_, _| Ok(())))?;
                child.get().map(drop)
            }),
        ),
    ];
    for (says, guard) in judgments {
        for output_side in [false, true] {
            let guards = if output_side {
                Guards::none().output(guard.clone())
            } else {
                Guards::none().input(guard.clone())
            };
            let tool = gated(guards);
            let ran = Arc::clone(&tool.ran);
            let error = dispatcher.submit(&workflow, tool).unwrap().get();
            let error = error.unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert!(!has_refusal(&error), "{error:?}");
            assert_eq!(ran.load(Ordering::SeqCst), usize::from(output_side));
        }
    }
    stop(&dispatcher);
}

// case GRD-16
// case EXE-15
#[test]
fn no_guards_are_counted_as_none() {
    let (dispatcher, workflow) = started();
    let handle = dispatcher.submit(&workflow, gated(Guards::none())).unwrap();
    assert_eq!(*handle.get().unwrap(), "ran:0:x");
    let counts = [Metadata::GUARDS_INPUT, Metadata::GUARDS_OUTPUT];
    let snapshot = handle.snapshot();
    assert_eq!(counts.map(|key| number(&snapshot, key)), [Some(0), Some(0)]);
    stop(&dispatcher);
}

// case GRD-01
// case GRD-02
// case GRD-17
#[test]
fn guards_run_by_kind_and_the_first_refusal_ends_it() {
    let (dispatcher, workflow) = started();
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = |label: &'static str, refuses: bool| {
        let order = Arc::clone(&order);
        probe(move |gate| {
            let phase = gate.phase().unwrap();
            order.lock().unwrap().push(format!("{label} {phase}"));
            if refuses {
                return Err(JobError::guardrail(label));
            }
            Ok(())
        })
    };
    let all = || {
        Guards::none()
            .output(noted("out", false))
            .auth(noted("auth", false))
            .input(noted("in1", false))
            .input(noted("in2", false))
            .admission(noted("adm", false))
    };
    let handle = dispatcher.submit(&workflow, gated(all())).unwrap();
    assert_eq!(*handle.get().unwrap(), "ran:4:x");
    let expected = [
        "adm ADMISSION",
        "in1 CONTENT_INPUT",
        "in2 CONTENT_INPUT",
        "auth AUTH",
        "out CONTENT_OUTPUT",
    ];
    assert_eq!(*order.lock().unwrap(), expected);
    assert_eq!(GuardPhase::Validation.to_string(), "VALIDATION");

    order.lock().unwrap().clear();
    let refused = all().admission(noted("adm2", true));
    let handle = dispatcher.submit(&workflow, gated(refused)).unwrap();
    assert!(is_refusal(&handle.get().unwrap_err()));
    assert_eq!(*order.lock().unwrap(), ["adm ADMISSION", "adm2 ADMISSION"]);

    // Without an input only who may reach the tool is judged.
    order.lock().unwrap().clear();
    let mut tool = gated(all());
    tool.input = None;
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    assert_eq!(*handle.get().unwrap(), "ran:1:x");
    assert_eq!(
        *order.lock().unwrap(),
        ["adm ADMISSION", "out CONTENT_OUTPUT"]
    );
    stop(&dispatcher);
}

#[test]
fn a_guard_runs_only_for_the_type_that_it_judges() {
    struct OfOrders;

    impl Guard for OfOrders {}

    impl ContentGuard for OfOrders {
        type Target = Order;

        fn judge(&self, order: &Order, _: &Gate<'_>) -> Result<(), JobError> {
            assert_eq!(*order, Order("x".to_owned()));
            Ok(())
        }
    }

    struct OfNumbers;

    impl Guard for OfNumbers {}

    impl ContentGuard for OfNumbers {
        type Target = u64;

        fn judge(&self, _: &u64, _: &Gate<'_>) -> Result<(), JobError> {
            Err(JobError::guardrail("a number"))
        }
    }

    let (dispatcher, workflow) = started();
    let guards = Guards::none()
        .input(OfOrders)
        .input(Arc::new(OfNumbers))
        .output(OfNumbers);
    let handle = dispatcher.submit(&workflow, gated(guards)).unwrap();
    assert_eq!(*handle.get().unwrap(), "ran:1:x");
    let applied = number(&handle.snapshot(), Metadata::GUARDS_OUTPUT);
    assert_eq!(applied, Some(0));
    stop(&dispatcher);
}

#[test]
fn what_has_no_text_fails_the_guards_that_judge_texts() {
    struct Silent;

    impl JobInput for Silent {}

    struct Mute;

    impl Job for Mute {
        type Output = u64;

        fn input(&self) -> Option<Arc<dyn JobInput>> {
            Some(Arc::new(Silent))
        }

        fn guards(&self) -> Guards {
            Guards::none().input(PayloadSizeCap::new(10))
        }

        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<u64, JobError> {
            Ok(7)
        }
    }

    struct Numbers;

    impl Doer for Numbers {
        type Output = u64;

        fn guards(&self) -> Guards {
            Guards::none().output(PiiDetection)
        }

        fn execute(&mut self, _: &OrchestratorContext) -> Result<u64, JobError> {
            Ok(7)
        }
    }

    let (dispatcher, workflow) = started();
    let error = dispatcher.submit(&workflow, Mute).unwrap().get();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("JobInput::text"), "{error}");
    let error = dispatcher.submit(&workflow, Numbers).unwrap().get();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("output_text"), "{error}");
    stop(&dispatcher);
}

// case GRD-07
#[test]
fn an_admission_guard_sees_who_calls_and_records_it() {
    struct Caller;

    impl Doer for Caller {
        type Output = JobHandle<String>;

        fn execute(&mut self, context: &OrchestratorContext) -> Result<Self::Output, JobError> {
            Ok(context.submit(gated(Guards::none().admission(passing())))?)
        }
    }

    let (dispatcher, _) = started();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let alice = Workflow::new("alice", "test").unwrap();
    let called = dispatcher.submit(&alice, Caller).unwrap().get().unwrap();
    assert_eq!(*called.get().unwrap(), "ran:1:x");
    let direct = gated(Guards::none().admission(passing()));
    dispatcher.submit(&alice, direct).unwrap().get().unwrap();
    quiesce(&dispatcher);
    let targets: Vec<_> = guards_heard(&recorder)
        .iter()
        .map(|guard| text(guard, Metadata::GUARD_TARGET).unwrap())
        .collect();
    let caller = std::any::type_name::<Caller>();
    assert_eq!(
        targets,
        [
            format!("alice via {caller} -> GatedTool"),
            "alice via a direct call -> GatedTool".to_owned()
        ]
    );
    stop(&dispatcher);
}

// case EXE-11
#[test]
fn a_job_holds_nothing_while_it_is_judged() {
    let (dispatcher, workflow) = started();
    let gate = Arc::new(CountingGate::new("permit", 1).unwrap());
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let first = dispatcher
        .submit(&workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
        .unwrap();
    let noted = |label: &'static str| {
        let (gate, order, first) = (Arc::clone(&gate), Arc::clone(&order), first.clone());
        move || {
            let dependency = first.snapshot().state();
            let held = gate.in_use();
            order
                .lock()
                .unwrap()
                .push(format!("{label} {dependency} {held}"));
        }
    };
    let (input, work, output) = (noted("in"), noted("execute"), noted("out"));
    let guards = Guards::none()
        .input(probe(move |_| {
            input();
            Ok(())
        }))
        .output(probe(move |_| {
            output();
            Ok(())
        }));
    let needed = Arc::clone(&gate);
    let tool = GatedTool {
        requirements: Box::new(move || JobRequirements::none().permit(&needed)),
        work: Box::new(move |_| {
            work();
            Ok("done".to_owned())
        }),
        ..gated(guards)
    };
    let handle = dispatcher
        .submit_with(&workflow, tool)
        .after(&first)
        .submit()
        .unwrap();
    handle.get().unwrap();
    assert_eq!(
        *order.lock().unwrap(),
        ["in COMPLETED 0", "execute COMPLETED 1", "out COMPLETED 0"]
    );
    stop(&dispatcher);
}

#[test]
fn a_job_is_judged_once_however_often_it_runs() {
    let (dispatcher, workflow, clock) = on_manual_clock();
    let (input, output) = (passing(), passing());
    let mut attempts = 0;
    let (sender, retries) = mpsc::channel();
    let _subscription = dispatcher
        .subscribe(
            EventFilter::all().kind(EventKind::TransientRetry),
            Arc::new(move |event: &Arc<Event>| {
                if let Event::Retry(retry) = &**event {
                    let _ = sender.send(retry.delay().unwrap_or_default());
                }
            }),
        )
        .unwrap();
    let tool = GatedTool {
        work: Box::new(move |_| {
            attempts += 1;
            if attempts == 1 {
                return Err(nucleo_runtime::RetrySignal::transient("up", "down").into());
            }
            Ok("at last".to_owned())
        }),
        ..gated(Guards::none().input(input.clone()).output(output.clone()))
    };
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    // No more time than the wait: the attempts have a timeout of their own.
    clock.advance(retries.recv().unwrap());
    assert_eq!(*handle.get().unwrap(), "at last");
    assert_eq!((input.runs(), output.runs()), (1, 1));
    stop(&dispatcher);
}

/// A flow bound to a tenant that submits one tool.
struct Flow(&'static str, Option<GatedTool>);

impl Doer for Flow {
    type Output = JobHandle<String>;

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        TenantScope::claim(self.0)
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<Self::Output, JobError> {
        let tool = self.1.take().unwrap();
        Ok(context.submit(tool)?)
    }
}

fn scoped(tenant: &'static str) -> Probe {
    Probe {
        scope: TenantScope::claim(tenant),
        ..passing()
    }
}

// case GRD-19
// case GRD-20
#[test]
fn a_guard_outside_of_the_flow_does_not_run_and_the_job_fails() {
    let (dispatcher, workflow) = started();
    let own = scoped("acme");
    let tool = gated(Guards::none().input(own.clone()));
    let handle = dispatcher.submit(&workflow, Flow("acme", Some(tool)));
    let handle = handle.unwrap().get().unwrap();
    assert_eq!(*handle.get().unwrap(), "ran:1:x");
    assert_eq!(own.runs(), 1);

    for output_side in [false, true] {
        let foreign = scoped("globex");
        let guards = if output_side {
            Guards::none().output(foreign.clone())
        } else {
            Guards::none().input(foreign.clone())
        };
        let tool = gated(guards);
        let ran = Arc::clone(&tool.ran);
        let handle = dispatcher.submit(&workflow, Flow("acme", Some(tool)));
        let error = handle.unwrap().get().unwrap().get().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::System { .. }),
            "{error:?}"
        );
        let cause = std::error::Error::source(&error).unwrap();
        let cause = cause.downcast_ref::<JobError>().unwrap();
        assert!(is_refusal(cause) && cause.llm_message().contains("globex"));
        assert_eq!(foreign.runs(), 0);
        assert_eq!(ran.load(Ordering::SeqCst), usize::from(output_side));
    }

    let tool = gated(Guards::none().input(refusing()));
    let handle = dispatcher.submit(&workflow, Flow("acme", Some(tool)));
    let error = handle.unwrap().get().unwrap().get().unwrap_err();
    assert!(is_refusal(&error));
    assert!(std::error::Error::source(&error).is_none());
    stop(&dispatcher);
}

/// What a judge was asked about.
struct Question(&'static str);

impl JobInput for Question {
    fn claim(&self) -> Option<Arc<dyn Scope>> {
        TenantScope::claim(self.0)
    }
}

struct JudgeJob(&'static str);

impl Job for JudgeJob {
    type Output = ();

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::new(Question(self.0)))
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

// case GRD-21
// case GRD-05
#[test]
fn a_guard_that_spawns_judges_is_sealed_with_the_flow() {
    let (dispatcher, workflow) = started();
    let spawning = |about: &'static str| Probe {
        judges: true,
        ..probe(move |gate| {
            let members = gate.context()?.scope_guard().members();
            let names: Vec<_> = members.iter().map(|member| member.describe()).collect();
            assert_eq!(names, ["TenantScope[tenantId=acme]"]);
            governor::submit(JudgeJob(about))?.get().map(drop)
        })
    };
    let tool = gated(Guards::none().input(spawning("acme")));
    let handle = dispatcher.submit(&workflow, Flow("acme", Some(tool)));
    let handle = handle.unwrap().get().unwrap();
    assert_eq!(*handle.get().unwrap(), "ran:1:x");

    let tool = gated(Guards::none().input(spawning("globex")));
    let ran = Arc::clone(&tool.ran);
    let handle = dispatcher.submit(&workflow, Flow("acme", Some(tool)));
    let error = handle.unwrap().get().unwrap().get().unwrap_err();
    assert!(has_refusal(&error), "{error:?}");
    assert_eq!(ran.load(Ordering::SeqCst), 0);

    // It waits for its judges, so it may hold nothing.
    let gate = Arc::new(CountingGate::new("permit", 1).unwrap());
    let holding = Probe {
        requirements: Arc::new(move || JobRequirements::none().permit(&gate)),
        ..spawning("acme")
    };
    let tool = gated(Guards::none().input(holding.clone()));
    let error = dispatcher.submit(&workflow, tool).unwrap().get();
    let error = error.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { .. }));
    assert_eq!(holding.runs(), 0);
    stop(&dispatcher);
}

// case SUB-21
#[test]
fn a_job_of_a_guards_kind_passes_the_door_from_an_orchestrator() {
    struct Prompt;

    impl Job for Prompt {
        type Output = String;

        fn job_type(&self) -> JobType {
            JobType::Guardrail
        }

        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<String, JobError> {
            Ok("resolved".to_owned())
        }
    }

    let (dispatcher, workflow) = started();
    let asking = doer_fn(|_| Ok((*governor::submit(Prompt)?.get()?).clone()));
    let handle = dispatcher.submit(&workflow, asking).unwrap();
    assert_eq!(*handle.get().unwrap(), "resolved");
    stop(&dispatcher);
}

/// A guard that says that it runs and then waits until its channel closes.
fn hanging(timeout: Duration) -> (Probe, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (running, ran) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let (running, held) = (Mutex::new(running), Mutex::new(held));
    let guard = Probe {
        timeout,
        ..probe(move |_| {
            let _ = running.lock().unwrap().send(());
            let _ = held.lock().unwrap().recv();
            Ok(())
        })
    };
    (guard, ran, release)
}

#[test]
fn a_guard_that_hangs_fails_the_job_when_its_time_is_over() {
    for output_side in [false, true] {
        let (dispatcher, workflow, clock) = on_manual_clock();
        let recorder = EventRecorder::new();
        let _all = dispatcher
            .subscribe(EventFilter::all(), recorder.clone())
            .unwrap();
        let (guard, ran, release) = hanging(Duration::from_secs(2));
        let guards = if output_side {
            Guards::none().output(guard)
        } else {
            Guards::none().input(guard)
        };
        let handle = dispatcher.submit(&workflow, gated(guards)).unwrap();
        ran.recv().unwrap();
        clock.advance(Duration::from_secs(2));
        quiesce(&dispatcher);
        clock.advance(Duration::from_secs(1));
        quiesce(&dispatcher);
        let error = handle.get().unwrap_err();
        assert!(error.is_timed_out(), "{error:?}");
        assert_eq!(handle.snapshot().state(), JobState::Failed);
        // It was left behind, and has a verdict all the same.
        quiesce(&dispatcher);
        let heard = guards_heard(&recorder);
        let verdicts: Vec<_> = heard
            .iter()
            .map(|guard| text(guard, Metadata::GUARD_VERDICT))
            .collect();
        assert_eq!(verdicts, [Some("FAIL".to_owned())], "{heard:?}");
        drop(release);
        stop(&dispatcher);
    }
}

#[test]
fn an_output_that_is_not_judged_in_time_is_not_delivered() {
    let (dispatcher, workflow, clock) = on_manual_clock();
    let (guard, ran, release) = hanging(Duration::from_secs(3_600));
    let tool = answering(Guards::none().output(guard), "unjudged");
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    ran.recv().unwrap();
    clock.advance(Duration::from_secs(31));
    let error = handle.get().unwrap_err();
    assert!(error.is_timed_out(), "{error:?}");
    drop(release);
    stop(&dispatcher);
}

#[test]
fn a_cancel_wakes_a_job_that_waits_for_the_guard_of_its_input() {
    let (dispatcher, workflow) = started();
    let (guard, ran, release) = hanging(Duration::from_secs(3_600));
    let tool = gated(Guards::none().input(guard));
    let executed = Arc::clone(&tool.ran);
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    ran.recv().unwrap();
    assert!(handle.cancel("no longer wanted"));
    assert!(handle.get().unwrap_err().is_cancelled());
    assert_eq!(handle.snapshot().state(), JobState::Cancelled);
    assert_eq!(executed.load(Ordering::SeqCst), 0);
    drop(release);
    stop(&dispatcher);
}

/// ST-3: once the work is done a cancel comes too late and says so; the verdict decides.
#[test]
fn a_cancel_while_an_output_is_judged_comes_too_late_and_says_so() {
    type Cancel = fn(&JobDispatcher, &JobHandle<String>) -> bool;
    let ways: [Cancel; 4] = [
        |_, handle| handle.cancel("no longer wanted"),
        |dispatcher, handle| dispatcher.cancel(handle.job_id(), "no longer wanted"),
        // Nor do these reach the guard, which would be no verdict.
        |dispatcher, handle| dispatcher.cancel_tree(handle.job_id(), "no longer wanted") > 0,
        |dispatcher, handle| dispatcher.cancel_workflow(handle.workflow_id(), "no more") > 0,
    ];
    for cancel in ways {
        for passes in [true, false] {
            let (dispatcher, workflow) = started();
            let recorder = EventRecorder::new();
            let _all = dispatcher
                .subscribe(EventFilter::all(), recorder.clone())
                .unwrap();
            let (hanging, ran, release) = hanging(Duration::from_secs(3_600));
            let after = if passes { passing() } else { refusing() };
            let guards = Guards::none().output(hanging).output(after);
            let handle = dispatcher
                .submit(&workflow, answering(guards, "judged"))
                .unwrap();
            ran.recv().unwrap();
            assert!(!cancel(&dispatcher, &handle), "too late");
            assert!(handle.try_get().unwrap().is_none(), "still judged");
            drop(release);
            let outcome = handle.get();
            quiesce(&dispatcher);
            let told = recorder.kinds_of(handle.job_id());
            let state = handle.snapshot().state();
            if passes {
                assert_eq!(*outcome.unwrap(), "judged");
                assert_eq!(state, JobState::Completed);
                assert!(told.contains(&EventKind::JobCompleted), "{told:?}");
            } else {
                assert!(is_refusal(&outcome.unwrap_err()));
                assert_eq!(state, JobState::Failed);
                assert!(told.contains(&EventKind::JobFailed), "{told:?}");
            }
            stop(&dispatcher);
        }
    }
}

#[test]
fn a_shutdown_ends_what_waits_for_a_guard() {
    let (dispatcher, workflow) = started();
    let gate = Arc::new(CountingGate::new("permit", 1).unwrap());
    let (holding, held) = mpsc::channel();
    let (release, holds) = mpsc::channel::<()>();
    let needed = Arc::clone(&gate);
    let holder = dispatcher
        .submit(
            &workflow,
            job_fn(
                move || JobRequirements::none().permit(&needed),
                move |_, _| {
                    holding.send(()).unwrap();
                    let _ = holds.recv();
                    Ok(())
                },
            ),
        )
        .unwrap();
    held.recv().unwrap();
    // The guard waits for the permit, and the tool for the guard.
    let needed = Arc::clone(&gate);
    let parked = Probe {
        requirements: Arc::new(move || JobRequirements::none().permit(&needed)),
        ..passing()
    };
    let tool = gated(Guards::none().input(parked.clone()));
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    let ending = {
        let dispatcher = dispatcher.clone();
        std::thread::spawn(move || dispatcher.shutdown(Duration::from_secs(5)))
    };
    assert!(handle.get().unwrap_err().is_cancelled());
    assert_eq!(handle.snapshot().state(), JobState::Cancelled);
    assert_eq!(parked.runs(), 0);
    drop(release);
    holder.get().unwrap();
    ending.join().unwrap().unwrap();
}

#[test]
fn a_guard_may_hold_what_it_declares() {
    let (dispatcher, workflow) = started();
    let gate = Arc::new(CountingGate::new("permit", 1).unwrap());
    let (needed, seen) = (Arc::clone(&gate), Arc::clone(&gate));
    let holding = Probe {
        requirements: Arc::new(move || JobRequirements::none().permit(&needed)),
        ..probe(move |gate| {
            gate.resources()?;
            assert_eq!(seen.in_use(), 1);
            Ok(())
        })
    };
    let tool = gated(Guards::none().input(holding));
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    assert_eq!(*handle.get().unwrap(), "ran:1:x");
    assert_eq!(gate.in_use(), 0);
    stop(&dispatcher);
}

// case GRD-26
// case GRD-27
#[test]
fn the_shipped_guards_judge_texts_by_name() {
    let (dispatcher, workflow) = started();
    let guards = || {
        Guards::none()
            .input(PayloadSizeCap::new(15))
            .output(PiiDetection)
    };
    let tool = answering(guards(), "reach me at ann@example.org");
    let error = dispatcher.submit(&workflow, tool).unwrap().get();
    let message = error.unwrap_err().llm_message();
    assert_eq!(
        message,
        "Guardrail violation: PII detected in tool output: e-mail address"
    );
    let mut tool = answering(guards(), "fine");
    tool.input = Some(Arc::new(Order("12345".to_owned())));
    let error = dispatcher.submit(&workflow, tool).unwrap().get();
    let message = error.unwrap_err().llm_message();
    assert_eq!(
        message,
        "Guardrail violation: Input of 17 characters exceeds the cap of 15 for GatedTool"
    );
    let mut tool = answering(guards(), "fine");
    tool.input = None;
    let handle = dispatcher.submit(&workflow, tool).unwrap();
    assert_eq!(*handle.get().unwrap(), "fine");
    stop(&dispatcher);
}

#[test]
fn an_orchestrator_is_guarded_as_a_leaf_is() {
    struct Report(Guards);

    impl Doer for Report {
        type Output = u32;

        fn guards(&self) -> Guards {
            self.0.clone()
        }

        fn input(&self) -> Option<Arc<dyn JobInput>> {
            Some(Arc::new("report".to_owned()))
        }

        fn output_text(&self, output: &u32) -> Option<String> {
            Some(output.to_string())
        }

        fn execute(&mut self, _: &OrchestratorContext) -> Result<u32, JobError> {
            Ok(123_456)
        }
    }

    let (dispatcher, workflow) = started();
    let cap = |input, output| {
        Report(
            Guards::none()
                .input(PayloadSizeCap::new(input))
                .output(PayloadSizeCap::new(output)),
        )
    };
    let message = |report| {
        let handle: JobHandle<u32> = dispatcher.submit(&workflow, report).unwrap();
        handle
            .get()
            .map(|value| *value)
            .map_err(|e| e.llm_message())
    };
    assert_eq!(message(cap(6, 6)), Ok(123_456));
    assert!(message(cap(5, 6)).unwrap_err().contains("Input of 6"));
    assert!(message(cap(6, 5)).unwrap_err().contains("Output of 6"));
    stop(&dispatcher);
}

#[test]
fn a_thousand_guarded_flows_of_two_tenants_never_meet() {
    let (dispatcher, _) = started();
    let seen = Arc::new(Mutex::new(Vec::<(String, Vec<String>)>::new()));
    let handles: Vec<_> = (0..1_000)
        .map(|n| {
            let tenant = if n % 2 == 0 { "acme" } else { "globex" };
            let noting = {
                let seen = Arc::clone(&seen);
                Probe {
                    scope: TenantScope::claim(tenant),
                    ..probe(move |gate| {
                        let bound = gate.context()?.scope_guard().members();
                        let names = bound.iter().map(|member| member.describe()).collect();
                        let user = gate.principal().unwrap().to_owned();
                        seen.lock().unwrap().push((user, names));
                        Ok(())
                    })
                }
            };
            let guards = Guards::none().input(noting.clone()).output(noting);
            let workflow = Workflow::new(tenant, "flow").unwrap();
            dispatcher
                .submit(&workflow, Flow(tenant, Some(gated(guards))))
                .unwrap()
        })
        .collect();
    for handle in handles {
        assert_eq!(*handle.get().unwrap().get().unwrap(), "ran:1:x");
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2_000);
    for (user, bound) in seen.iter() {
        assert_eq!(*bound, [format!("TenantScope[tenantId={user}]")]);
    }
    drop(seen);
    stop(&dispatcher);
}

/// Every event of a job carries what was noted on it; a guard's stay its own.
#[test]
fn the_counts_are_on_the_terminal_event() {
    let (dispatcher, workflow) = started();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let guards = Guards::none().input(passing()).output(passing());
    let handle = dispatcher.submit(&workflow, gated(guards)).unwrap();
    handle.get().unwrap();
    quiesce(&dispatcher);
    let events = recorder.events_of(handle.job_id());
    let completed = events
        .iter()
        .find(|event| event.kind() == EventKind::JobCompleted)
        .map(Arc::as_ref)
        .and_then(Event::snapshot)
        .unwrap();
    assert_eq!(number(completed, Metadata::GUARDS_INPUT), Some(1));
    assert_eq!(number(completed, Metadata::GUARDS_OUTPUT), Some(1));
    assert_eq!(text(completed, Metadata::GUARD_TARGET), None);
    for guard in guards_heard(&recorder) {
        assert_eq!(
            text(&guard, Metadata::GUARD_VERDICT).as_deref(),
            Some("PASS")
        );
        assert_eq!(guard.type_name(), "Probe");
    }
    stop(&dispatcher);
}

/// A guard that panics when it is asked one thing.
struct Panicking(&'static str);

impl Panicking {
    fn asked(&self, what: &str) {
        if self.0 == what {
            panic!("no {what} today");
        }
    }
}

impl Guard for Panicking {
    fn name(&self) -> std::borrow::Cow<'static, str> {
        self.asked("name");
        "panicking".into()
    }

    fn type_path(&self) -> &'static str {
        self.asked("type_path");
        "tests::Panicking"
    }

    fn timeout(&self) -> Duration {
        self.asked("timeout");
        Duration::from_secs(10)
    }

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        self.asked("scope");
        None
    }

    fn spawns_judges(&self) -> bool {
        self.asked("spawns_judges");
        false
    }
}

impl ContentGuard for Panicking {
    type Target = str;

    fn judge(&self, _: &str, _: &Gate<'_>) -> Result<(), JobError> {
        Ok(())
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        self.asked("drop");
    }
}

#[test]
fn a_guard_that_cannot_say_what_it_is_is_named_with_the_cause() {
    let (dispatcher, workflow) = started();
    for what in ["name", "type_path", "timeout", "scope", "spawns_judges"] {
        let guards = Guards::none().input(Panicking(what));
        let handle = dispatcher.submit(&workflow, gated(guards)).unwrap();
        let told = handle.get().unwrap_err().to_string();
        let name = match what {
            "type_path" => "panicking",
            _ => "Panicking",
        };
        assert!(told.contains(&format!("{name} was refused")), "{told}");
        assert!(told.contains(&format!("no {what} today")), "{told}");
    }
    stop(&dispatcher);
}

#[test]
fn several_guards_whose_drops_panic_are_each_dropped() {
    let (dispatcher, workflow) = started();
    let guards = Guards::none()
        .input(Panicking("drop"))
        .input(Panicking("drop"))
        .output(Panicking("drop"));
    let handle = dispatcher.submit(&workflow, gated(guards)).unwrap();
    handle.get().unwrap();
    drop(handle);
    drop(
        Guards::none()
            .input(Panicking("drop"))
            .input(Panicking("drop")),
    );
    stop(&dispatcher);
}
