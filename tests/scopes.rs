//! Scopes at the door: what a flow is bound to, on every route into it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nucleo_runtime::events::{EventFilter, EventKind};
use nucleo_runtime::guard::{
    Axis, CompositeScope, JobInput, ReadOnlyScope, Scope, ScopeGuard, TenantScope,
};
use nucleo_runtime::testing::{EventRecorder, quiesce};
use nucleo_runtime::{
    Doer, ErrorKind, Job, JobContext, JobDispatcher, JobError, JobHandle, JobResources,
    ManualClock, OrchestratorContext, Workflow, doer_fn, governor,
};
use proptest::prelude::*;

fn started() -> (JobDispatcher, Workflow) {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    (dispatcher, Workflow::new("alice", "test").unwrap())
}

fn tenant(id: &str) -> Arc<dyn Scope> {
    Arc::new(TenantScope::new(id))
}

/// Places in a hierarchy, one axis a level.
macro_rules! place {
    ($name:ident, $($axis:ident),+) => {
        #[derive(Debug)]
        struct $name { $($axis: &'static str),+ }

        impl Scope for $name {
            fn axes(&self) -> Vec<Axis> {
                vec![$(Axis::new(stringify!($axis), self.$axis)),+]
            }
        }
    };
}

place!(Region, region);
place!(City, region, city);
place!(District, region, district);
place!(Block, region, city, block);

fn region(region: &'static str) -> Arc<dyn Scope> {
    Arc::new(Region { region })
}

fn city(region: &'static str, city: &'static str) -> Arc<dyn Scope> {
    Arc::new(City { region, city })
}

fn district(region: &'static str, district: &'static str) -> Arc<dyn Scope> {
    Arc::new(District { region, district })
}

fn block(region: &'static str, city: &'static str, block: &'static str) -> Arc<dyn Scope> {
    Arc::new(Block {
        region,
        city,
        block,
    })
}

/// An input that names a scope.
struct Names(Option<Arc<dyn Scope>>);

impl JobInput for Names {
    fn claim(&self) -> Option<Arc<dyn Scope>> {
        self.0.clone()
    }
}

/// A leaf that says what it was asked for, and counts that it ran.
#[derive(Clone, Default)]
struct Tool {
    names: Option<Arc<dyn Scope>>,
    scope: Option<Arc<dyn Scope>>,
    ran: Arc<AtomicUsize>,
}

impl Tool {
    fn naming(scope: Arc<dyn Scope>) -> Self {
        Self {
            names: Some(scope),
            ..Self::default()
        }
    }
}

impl Job for Tool {
    type Output = &'static str;

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::new(Names(self.names.clone())))
    }

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        self.scope.clone()
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<&'static str, JobError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        Ok("ran")
    }
}

type Body<T> = Box<dyn FnMut(&OrchestratorContext) -> Result<T, JobError> + Send>;

/// An orchestrator bound to scopes.
struct Bound<T> {
    scope: Option<Arc<dyn Scope>>,
    names: Option<Arc<dyn Scope>>,
    work: Body<T>,
}

fn bound<T: Send + Sync + 'static>(
    scope: Arc<dyn Scope>,
    work: impl FnMut(&OrchestratorContext) -> Result<T, JobError> + Send + 'static,
) -> Bound<T> {
    Bound {
        scope: Some(scope),
        names: None,
        work: Box::new(work),
    }
}

impl<T: Send + Sync + 'static> Doer for Bound<T> {
    type Output = T;

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        self.scope.clone()
    }

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        let names = self.names.clone()?;
        Some(Arc::new(Names(Some(names))))
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<T, JobError> {
        (self.work)(context)
    }
}

/// What came of a tool: its refusal, if that is what it is, or that it ran.
fn verdict<T: std::fmt::Debug + Send + Sync + 'static>(
    handle: &JobHandle<T>,
) -> Result<(), String> {
    match handle.get() {
        Ok(_) => Ok(()),
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Guardrail { .. }),
                "{error:?}"
            );
            assert!(std::error::Error::source(&error).is_none());
            Err(error.llm_message())
        }
    }
}

const T9_UNDER_T1: &str = "Guardrail violation: Scope mismatch: this flow is bound to \
                           TenantScope[tenantId=t1] but the input names TenantScope[tenantId=t9]";

/// Runs `route` in a flow that is bound to t1, with a tool that names t9 and one that names t1:
/// the one never runs, the other does.
fn assert_route(
    route: impl Fn(&JobDispatcher, &OrchestratorContext, Tool) -> Result<(), String>
    + Send
    + Sync
    + 'static,
) {
    let (dispatcher, workflow) = started();
    let own = dispatcher.clone();
    let flow = bound(tenant("t1"), move |context| {
        let foreign = Tool::naming(tenant("t9"));
        let refused = route(&own, context, foreign.clone());
        let valid = Tool::naming(tenant("t1"));
        let passed = route(&own, context, valid.clone());
        Ok((
            refused,
            foreign.ran.load(Ordering::SeqCst),
            passed,
            valid.ran.load(Ordering::SeqCst),
        ))
    });
    let outcome = dispatcher.submit(&workflow, flow).unwrap().get().unwrap();
    assert_eq!(*outcome, (Err(T9_UNDER_T1.to_owned()), 0, Ok(()), 1));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case SUB-06
#[test]
fn a_direct_child_outside_of_the_flow_is_refused() {
    assert_route(|_, context, tool| verdict(&context.submit(tool).unwrap()));
}

#[test]
fn what_a_child_is_bound_to_is_judged_as_what_its_input_names() {
    assert_route(|_, context, mut tool| {
        tool.scope = tool.names.take();
        verdict(&context.submit(tool).unwrap())
    });
}

// case SCP-14
#[test]
fn a_child_of_an_undeclared_doer_is_refused() {
    assert_route(|_, context, tool| {
        let between = doer_fn(move |context| Ok(verdict(&context.submit(tool.clone())?)));
        let handle = context.submit(between).unwrap();
        (*handle.get().unwrap()).clone()
    });
}

#[test]
fn each_branch_of_a_fan_out_is_judged() {
    assert_route(|_, context, tool| {
        context.next_step();
        let neighbour = context
            .submit_in_current_step(Tool::naming(tenant("t1")))
            .unwrap();
        let handle = context.submit_in_current_step(tool).unwrap();
        assert_eq!(verdict(&neighbour), Ok(()));
        verdict(&handle)
    });
}

#[test]
fn a_job_that_runs_after_another_is_judged_when_it_is_submitted() {
    assert_route(|_, context, tool| {
        let first = context.submit(Tool::naming(tenant("t1"))).unwrap();
        let then = context.submit_with(tool).after(&first).submit().unwrap();
        verdict(&then)
    });
}

#[test]
fn a_delayed_job_is_judged_under_who_asked_for_it() {
    assert_route(|dispatcher, context, tool| {
        let workflow = Workflow::new(context.user(), "later").unwrap();
        let delayed = dispatcher
            .submit_delayed(Duration::from_millis(1), &workflow, tool)
            .unwrap();
        verdict(&delayed.get().unwrap())
    });
}

#[test]
fn a_root_that_a_flow_submits_stays_in_it() {
    assert_route(|dispatcher, context, tool| {
        let workflow = Workflow::new(context.user(), "other").unwrap();
        verdict(&dispatcher.submit(&workflow, tool).unwrap())
    });
}

#[test]
fn the_governor_submits_under_the_same_guard() {
    assert_route(|_, _, tool| verdict(&governor::submit(tool).unwrap()));
}

#[test]
fn a_bound_thread_submits_under_the_same_guard() {
    assert_route(|dispatcher, context, tool| {
        let dispatcher = dispatcher.clone();
        let bound = context.bind(move || {
            let workflow = Workflow::new("alice", "thread").unwrap();
            dispatcher.submit(&workflow, tool).unwrap()
        });
        verdict(&std::thread::spawn(bound).join().unwrap())
    });
}

#[test]
fn a_submission_that_another_thread_finishes_is_whose_began_it() {
    assert_route(|dispatcher, context, tool| {
        let workflow = Workflow::new(context.user(), "moved").unwrap();
        let begun = dispatcher.submit_with(&workflow, tool);
        let handle = std::thread::spawn(move || begun.submit().unwrap());
        verdict(&handle.join().unwrap())
    });
}

#[test]
fn a_grandchild_under_a_root_of_its_own_is_refused() {
    assert_route(|dispatcher, context, tool| {
        let workflow = Workflow::new(context.user(), "nested").unwrap();
        let inner = doer_fn(move |context| Ok(verdict(&context.submit(tool.clone())?)));
        let handle = dispatcher.submit(&workflow, inner).unwrap();
        (*handle.get().unwrap()).clone()
    });
}

// case SCP-15
#[test]
fn an_orchestrator_bound_elsewhere_dies_at_its_own_submission() {
    let (dispatcher, workflow) = started();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let flow = bound(tenant("t1"), |context| {
        let inner = context.submit(bound(tenant("t2"), |_| Ok(())))?;
        Ok((inner.job_id().to_owned(), verdict(&inner)))
    });
    let outcome = dispatcher.submit(&workflow, flow).unwrap().get().unwrap();
    let (id, refusal) = &*outcome;
    let refusal = refusal.as_ref().unwrap_err();
    assert!(refusal.contains("tenantId=t1") && refusal.contains("tenantId=t2"));
    quiesce(&dispatcher);
    // Born failed: it was never scheduled.
    assert_eq!(recorder.kinds_of(id), [EventKind::JobFailed]);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case SCP-16
#[test]
fn a_running_orchestrator_has_no_way_to_change_its_guard() {
    let (dispatcher, workflow) = started();
    let flow = bound(tenant("t1"), |context| {
        // All that there is answers a view; what is made of it binds nobody.
        let wider = ScopeGuard::default().merge(context.scope_guard());
        drop(wider.with([tenant("t9")]));
        assert_eq!(context.scope_guard().members().len(), 1);
        Ok(verdict(&context.submit(Tool::naming(tenant("t9")))?))
    });
    let handle = dispatcher.submit(&workflow, flow).unwrap();
    assert_eq!(*handle.get().unwrap(), Err(T9_UNDER_T1.to_owned()));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case SCP-17
#[test]
fn a_guard_given_with_the_submission_holds_as_a_declared_one() {
    let (dispatcher, workflow) = started();
    let unmarked = doer_fn(|context| {
        let foreign = verdict(&context.submit(Tool::naming(tenant("t9")))?);
        let own = verdict(&context.submit(Tool::naming(tenant("t1")))?);
        Ok((foreign, own))
    });
    let handle = dispatcher
        .submit_with(&workflow, unmarked)
        .bound_to(tenant("t1"))
        .submit()
        .unwrap();
    let expected = (Err(T9_UNDER_T1.to_owned()), Ok(()));
    assert_eq!(*handle.get().unwrap(), expected);

    // And the caller judges it as one.
    let flow = bound(tenant("t9"), |context| {
        let child = context
            .submit_with(doer_fn(|_| Ok(())))
            .bound_to(tenant("t1"))
            .submit()?;
        Ok(verdict(&child).is_err())
    });
    assert!(*dispatcher.submit(&workflow, flow).unwrap().get().unwrap());
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case SCP-19
#[test]
fn refined_axes_are_judged_at_the_door_as_deep_as_both_reach() {
    let (dispatcher, workflow) = started();
    let table = [
        (region("emea"), city("emea", "berlin"), true),
        (region("emea"), city("apac", "tokyo"), false),
        (city("emea", "berlin"), region("emea"), true),
        (city("emea", "berlin"), region("apac"), false),
        (city("emea", "berlin"), district("emea", "mitte"), true),
        (city("emea", "berlin"), district("apac", "mitte"), false),
    ];
    for (binding, claim, passes) in table {
        let names = format!("{} x {}", binding.describe(), claim.describe());
        let flow = bound(binding, move |context| {
            Ok(verdict(&context.submit(Tool::naming(claim.clone()))?).is_ok())
        });
        let handle = dispatcher.submit(&workflow, flow).unwrap();
        assert_eq!(*handle.get().unwrap(), passes, "{names}");
    }
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case SCP-01
#[test]
fn tenants_are_compared_and_both_are_named() {
    let t1 = TenantScope::new("t1");
    assert!(t1.judge(&TenantScope::new("t1")).is_ok());
    let refusal = t1.judge(&TenantScope::new("t2")).unwrap_err();
    assert!(refusal.is_correctable());
    assert_eq!(
        refusal.llm_message(),
        "Guardrail violation: Scope mismatch: this flow is bound to TenantScope[tenantId=t1] but \
         the input names TenantScope[tenantId=t2]"
    );
}

// case SCP-02
#[test]
fn a_claim_of_an_unrelated_kind_passes() {
    assert!(TenantScope::new("t1").judge(&*region("emea")).is_ok());
    assert!(region("emea").judge(&TenantScope::new("t1")).is_ok());
}

// case SCP-04
// case SCP-05
// case SCP-06
#[test]
fn refinements_are_judged_both_ways() {
    let berlin = city("emea", "berlin");
    let table = [
        (&berlin, region("emea"), true),
        (&berlin, region("apac"), false),
        (&berlin, city("emea", "berlin"), true),
        (&berlin, city("emea", "munich"), false),
        (&berlin, district("emea", "mitte"), true),
        (&berlin, district("apac", "mitte"), false),
        (&district("emea", "mitte"), city("emea", "berlin"), true),
        (&district("emea", "mitte"), city("apac", "berlin"), false),
    ];
    for (binding, claim, passes) in table {
        assert_eq!(binding.judge(&*claim).is_ok(), passes, "{claim:?}");
    }
}

// case SCP-07
#[test]
fn three_levels_are_judged_at_every_depth_they_share() {
    let bound = block("emea", "berlin", "b1");
    let table = [
        (region("emea"), true),
        (region("apac"), false),
        (city("emea", "berlin"), true),
        (city("emea", "munich"), false),
        (block("emea", "berlin", "b1"), true),
        (block("emea", "berlin", "b2"), false),
        (block("emea", "munich", "b1"), false),
        (district("emea", "mitte"), true),
        (district("apac", "mitte"), false),
    ];
    for (other, passes) in table {
        assert_eq!(bound.judge(&*other).is_ok(), passes, "bound: {other:?}");
        assert_eq!(other.judge(&*bound).is_ok(), passes, "claimed: {other:?}");
    }
}

// case SCP-09
#[test]
fn a_guard_asks_every_member_about_every_part() {
    let guard = ScopeGuard::new([tenant("t1"), region("emea")]);
    let both = |a: Arc<dyn Scope>, b: Arc<dyn Scope>| -> Arc<dyn Scope> {
        Arc::new(CompositeScope::new([a, b]))
    };
    assert!(guard.judge(&tenant("t1")).is_ok());
    assert!(guard.judge(&tenant("t2")).is_err());
    assert!(guard.judge(&region("apac")).is_err());
    assert!(guard.judge(&both(tenant("t1"), region("emea"))).is_ok());
    assert!(guard.judge(&both(tenant("t1"), region("apac"))).is_err());
    assert!(guard.judge(&both(region("emea"), tenant("t2"))).is_err());
    // A bare scope does not look into a composite; a guard of that scope does.
    let composite = both(tenant("t2"), region("apac"));
    assert!(tenant("t1").judge(&*composite).is_ok());
    let asked = ScopeGuard::new([tenant("t1")]);
    assert!(asked.judge(&composite).is_err());
    // A composite member judges by each of its parts.
    assert!(composite.judge(&*tenant("t1")).is_err());
    assert!(composite.judge(&*region("emea")).is_err());
    let composed = ScopeGuard::new([composite]);
    assert!(composed.judge(&region("emea")).is_err());
    assert!(composed.judge(&tenant("t2")).is_ok());
}

// case SCP-10
#[test]
fn a_guard_is_a_set_and_a_merge_changes_neither_side() {
    let guard = ScopeGuard::new([tenant("t1"), tenant("t1"), region("emea")]);
    assert_eq!(guard.members().len(), 2);
    let other = ScopeGuard::new(vec![region("emea"), city("emea", "berlin")]);
    let merged = guard.merge(&other);
    assert_eq!(merged.members().len(), 3);
    assert_eq!(merged.merge(&other).merge(&guard).members().len(), 3);
    assert_eq!((guard.members().len(), other.members().len()), (2, 2));
    assert!(
        ScopeGuard::default()
            .merge(&guard)
            .judge(&tenant("t2"))
            .is_err()
    );
    assert!(
        guard
            .merge(&ScopeGuard::default())
            .judge(&tenant("t2"))
            .is_err()
    );
}

#[test]
fn scopes_that_only_look_alike_are_both_kept() {
    /// Judges by what its axes do not show.
    struct Hidden(&'static str);

    impl std::fmt::Debug for Hidden {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Hidden")
        }
    }

    impl Scope for Hidden {
        fn axes(&self) -> Vec<Axis> {
            Vec::new()
        }

        fn judge(&self, claim: &dyn Scope) -> Result<(), JobError> {
            let refused = claim.axes().iter().any(|axis| axis.value == self.0);
            if refused {
                return Err(JobError::guardrail("hidden"));
            }
            Ok(())
        }
    }

    let guard = ScopeGuard::new([
        Arc::new(Hidden("a")) as Arc<dyn Scope>,
        Arc::new(Hidden("b")),
    ]);
    assert_eq!(guard.members().len(), 2);
    assert!(guard.judge(&tenant("a")).is_err());
    assert!(guard.judge(&tenant("b")).is_err());
}

// case SCP-11
#[test]
fn nested_composites_are_taken_apart() {
    let nested = CompositeScope::new([
        Arc::new(CompositeScope::new([tenant("t1"), region("emea")])) as Arc<dyn Scope>,
        city("emea", "berlin"),
    ]);
    let components = nested.components().unwrap();
    assert_eq!(components.len(), 3);
    assert!(components.iter().all(|part| part.components().is_none()));
    assert_eq!(
        nested.describe(),
        "CompositeScope[TenantScope[tenantId=t1], Region[region=emea], City[region=emea, \
         city=berlin]]"
    );
    let flat = CompositeScope::new([tenant("t1"), region("emea"), city("emea", "berlin")]);
    assert_eq!(nested, flat);
    let turned = CompositeScope::new([region("emea"), tenant("t1"), city("emea", "berlin")]);
    assert_ne!(nested, turned);
}

// case SCP-12
#[test]
fn a_read_only_scope_is_one_value_and_judges_nobody() {
    let claim = TenantScope::claim("t1").unwrap();
    assert_eq!(claim.describe(), "TenantScope[tenantId=t1]");
    let read_only = || Arc::new(ReadOnlyScope) as Arc<dyn Scope>;
    assert_eq!(ReadOnlyScope.describe(), "ReadOnlyScope");
    let guard = ScopeGuard::new([read_only(), read_only(), tenant("t1")]);
    assert_eq!(guard.members().len(), 2);
    assert!(guard.binds::<ReadOnlyScope>() && !guard.binds::<Region>());
    assert!(ReadOnlyScope.judge(&*claim).is_ok());
    assert!(guard.judge(&read_only()).is_ok());
}

#[test]
fn a_read_only_flow_stays_one_at_every_depth() {
    let (dispatcher, workflow) = started();
    let flow = bound(Arc::new(ReadOnlyScope), |context| {
        let inner = context.submit(bound(tenant("t1"), |context| {
            let leaf =
                context.submit(doer_fn(|context| Ok(context.scope_guard().members().len())))?;
            let read_only = context.scope_guard().binds::<ReadOnlyScope>();
            Ok((read_only, *leaf.get()?))
        }))?;
        Ok(*inner.get()?)
    });
    let handle = dispatcher.submit(&workflow, flow).unwrap();
    assert_eq!(*handle.get().unwrap(), (true, 2));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

/// Panics where it is told to.
#[derive(Debug)]
struct Broken {
    axes: bool,
    judge: bool,
}

impl Scope for Broken {
    fn axes(&self) -> Vec<Axis> {
        assert!(!self.axes, "no axes today");
        vec![Axis::new(TenantScope::AXIS, "t1")]
    }

    fn judge(&self, _: &dyn Scope) -> Result<(), JobError> {
        assert!(!self.judge, "no judgment today");
        Ok(())
    }
}

// case SUB-19
#[test]
fn a_scope_that_cannot_be_produced_or_judged_is_a_defect_and_no_refusal() {
    struct NoScope;

    impl Doer for NoScope {
        type Output = ();

        fn scope(&self) -> Option<Arc<dyn Scope>> {
            panic!("no scope today");
        }

        fn execute(&mut self, _: &OrchestratorContext) -> Result<(), JobError> {
            Ok(())
        }
    }

    struct NoClaim;

    impl JobInput for NoClaim {
        fn claim(&self) -> Option<Arc<dyn Scope>> {
            panic!("no claim today");
        }
    }

    struct Claimless;

    impl Job for Claimless {
        type Output = ();

        fn input(&self) -> Option<Arc<dyn JobInput>> {
            Some(Arc::new(NoClaim))
        }

        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            Ok(())
        }
    }

    let (dispatcher, workflow) = started();
    let defect = |error: JobError, says: &str| {
        assert!(
            matches!(error.kind(), ErrorKind::System { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains(says), "{error}");
    };
    let handle = dispatcher.submit(&workflow, NoScope).unwrap();
    defect(handle.get().unwrap_err(), "no scope today");
    let handle = dispatcher.submit(&workflow, Claimless).unwrap();
    defect(handle.get().unwrap_err(), "no claim today");

    let broken = |axes, judge| Arc::new(Broken { axes, judge }) as Arc<dyn Scope>;
    let flow = bound(tenant("t1"), move |context| {
        let handle = context.submit(Tool::naming(broken(true, false)))?;
        Ok(handle.get().unwrap_err())
    });
    let handle = dispatcher.submit(&workflow, flow).unwrap();
    defect((*handle.get().unwrap()).clone(), "no axes today");
    let flow = bound(broken(false, true), |context| {
        let handle = context.submit(Tool::naming(tenant("t1")))?;
        Ok(handle.get().unwrap_err())
    });
    let handle = dispatcher.submit(&workflow, flow).unwrap();
    defect((*handle.get().unwrap()).clone(), "no judgment today");
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_leaf_may_not_submit_later_either() {
    let (dispatcher, workflow) = started();
    let (own, roots) = (dispatcher.clone(), workflow.clone());
    let leaf = nucleo_runtime::job_fn(nucleo_runtime::JobRequirements::none, move |_, _| {
        let later = own.submit_delayed(Duration::ZERO, &roots, Tool::default())?;
        Ok(later.get().map(drop).unwrap_err())
    });
    let refusal = dispatcher.submit(&workflow, leaf).unwrap().get().unwrap();
    assert!(refusal.to_string().contains("Only orchestrators"));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_delayed_job_keeps_the_guard_of_a_caller_that_is_gone() {
    let clock = Arc::new(ManualClock::new());
    let dispatcher = JobDispatcher::builder()
        .clock(clock.clone())
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "test").unwrap();
    let (sent, handles) = mpsc::channel();
    let (own, roots) = (dispatcher.clone(), workflow.clone());
    let flow = bound(tenant("t1"), move |_| {
        for id in ["t9", "t1"] {
            let tool = Tool::naming(tenant(id));
            let later = own.submit_delayed(Duration::from_secs(3_600), &roots, tool)?;
            sent.send(later).unwrap();
        }
        Ok(())
    });
    dispatcher.submit(&workflow, flow).unwrap().get().unwrap();
    clock.advance(Duration::from_secs(3_600));
    let verdicts: Vec<_> = handles
        .iter()
        .take(2)
        .map(|later| verdict(&later.get().unwrap()))
        .collect();
    assert_eq!(verdicts, [Err(T9_UNDER_T1.to_owned()), Ok(())]);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_thousand_flows_of_two_tenants_never_meet() {
    let (dispatcher, _) = started();
    let seen: Arc<Mutex<Vec<(&str, String)>>> = Arc::default();
    let handles: Vec<_> = (0..1_000)
        .map(|n| {
            let (own, other) = if n % 2 == 0 {
                ("acme", "globex")
            } else {
                ("globex", "acme")
            };
            let seen = Arc::clone(&seen);
            let flow = bound(tenant(own), move |context| {
                let inner = {
                    let seen = Arc::clone(&seen);
                    doer_fn(move |context| {
                        for member in context.scope_guard().members() {
                            seen.lock().unwrap().push((own, member.describe()));
                        }
                        let valid = verdict(&context.submit(Tool::naming(tenant(own)))?);
                        let foreign = verdict(&context.submit(Tool::naming(tenant(other)))?);
                        Ok((valid.is_ok(), foreign.is_err()))
                    })
                };
                Ok(*context.submit(inner)?.get()?)
            });
            let workflow = Workflow::new(own, "flow").unwrap();
            dispatcher.submit(&workflow, flow).unwrap()
        })
        .collect();
    for handle in handles {
        assert_eq!(*handle.get().unwrap(), (true, true));
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1_000);
    for (own, member) in seen.iter() {
        assert_eq!(*member, format!("TenantScope[tenantId={own}]"));
    }
    drop(seen);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// What a tree of orchestrators lets pass, against a model of it: a path of bindings and a claim, each
// a set of values by axis.

const AXES: [&str; 3] = ["tenantId", "region", "case"];
const VALUES: [&str; 2] = ["a", "b"];

type Coordinates = BTreeMap<usize, usize>;

/// Any combination of axes.
#[derive(Debug)]
struct Mixed(Vec<(usize, usize)>);

impl Scope for Mixed {
    fn axes(&self) -> Vec<Axis> {
        self.0
            .iter()
            .map(|&(axis, value)| Axis::new(AXES[axis], VALUES[value]))
            .collect()
    }
}

fn mixed(coordinates: &Coordinates) -> Option<Arc<dyn Scope>> {
    let axes: Vec<_> = coordinates
        .iter()
        .map(|(&axis, &value)| (axis, value))
        .collect();
    (!axes.is_empty()).then(|| Arc::new(Mixed(axes)) as Arc<dyn Scope>)
}

/// A job of the tree: what it is bound to, what its input names, how it is submitted, and what it
/// submits.
#[derive(Clone, Debug)]
struct Node {
    scope: Coordinates,
    claim: Coordinates,
    route: usize,
    children: Vec<Node>,
}

fn coordinates() -> impl Strategy<Value = Coordinates> {
    proptest::collection::btree_map(0..AXES.len(), 0..VALUES.len(), 0..=2)
}

fn tree() -> impl Strategy<Value = Node> {
    let node = |children: Vec<Node>| {
        (coordinates(), coordinates(), 0..4_usize).prop_map(move |(scope, claim, route)| Node {
            scope,
            claim,
            route,
            children: children.clone(),
        })
    };
    node(Vec::new()).prop_recursive(4, 16, 3, move |inner| {
        proptest::collection::vec(inner, 0..4).prop_flat_map(node)
    })
}

/// Whether a claim lies within all the bindings, by the rule as it is written.
fn within(bindings: &[Coordinates], claim: &Coordinates) -> bool {
    bindings.iter().all(|binding| {
        claim
            .iter()
            .all(|(axis, value)| binding.get(axis).is_none_or(|own| own == value))
    })
}

/// The paths of the jobs that should have been admitted, in the order of the walk.
fn expected(node: &Node, bindings: &[Coordinates], path: &str, admitted: &mut Vec<String>) {
    if !(within(bindings, &node.scope) && within(bindings, &node.claim)) {
        return;
    }
    admitted.push(path.to_owned());
    let mut bindings = bindings.to_vec();
    bindings.push(node.scope.clone());
    for (index, child) in node.children.iter().enumerate() {
        expected(child, &bindings, &format!("{path}.{index}"), admitted);
    }
}

fn walker(
    dispatcher: &JobDispatcher,
    node: &Node,
    path: String,
    admitted: &Arc<Mutex<Vec<String>>>,
) -> Bound<()> {
    let (dispatcher, admitted) = (dispatcher.clone(), Arc::clone(admitted));
    let children = node.children.clone();
    Bound {
        scope: mixed(&node.scope),
        names: mixed(&node.claim),
        work: Box::new(move |context| {
            admitted.lock().unwrap().push(path.clone());
            for (index, child) in children.iter().enumerate() {
                let walker = walker(&dispatcher, child, format!("{path}.{index}"), &admitted);
                let workflow = Workflow::new("alice", "branch")?;
                let handle = match child.route {
                    0 => context.submit(walker)?,
                    1 => dispatcher.submit(&workflow, walker)?,
                    2 => governor::submit(walker)?,
                    _ => dispatcher
                        .submit_delayed(Duration::ZERO, &workflow, walker)?
                        .get()?,
                };
                if let Err(error) = handle.get() {
                    assert!(
                        matches!(error.kind(), ErrorKind::Guardrail { .. }),
                        "{error}"
                    );
                }
            }
            Ok(())
        }),
    }
}

#[test]
fn a_tree_admits_what_lies_within_its_merged_guard_and_nothing_else() {
    let (dispatcher, workflow) = started();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(64));
    let verdict = runner.run(&tree(), |root| {
        let admitted: Arc<Mutex<Vec<String>>> = Arc::default();
        let walker = walker(&dispatcher, &root, "r".to_owned(), &admitted);
        dispatcher.submit(&workflow, walker).unwrap().get().unwrap();
        let mut model = Vec::new();
        expected(&root, &[], "r", &mut model);
        prop_assert_eq!(&*admitted.lock().unwrap(), &model);
        Ok(())
    });
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    verdict.unwrap();
}

#[test]
fn a_guard_judges_every_part_of_a_claim_of_several_however_deep() {
    let own = TenantScope::new("acme");
    let part = |tenant: &str| Arc::new(TenantScope::new(tenant)) as Arc<dyn Scope>;
    let foreign = CompositeScope::new([part("acme"), part("evil")]);

    /// One of a user's, which has no axes of its own.
    #[derive(Debug)]
    struct Pair([Arc<dyn Scope>; 2]);

    impl Scope for Pair {
        fn axes(&self) -> Vec<Axis> {
            Vec::new()
        }

        fn components(&self) -> Option<&[Arc<dyn Scope>]> {
            Some(&self.0)
        }
    }

    let nested = Pair([part("acme"), Arc::new(Pair([part("acme"), part("evil")]))]);
    let guard = ScopeGuard::new([Arc::new(own) as Arc<dyn Scope>]);
    for claim in [Arc::new(foreign) as Arc<dyn Scope>, Arc::new(nested)] {
        assert!(guard.judge(&claim).is_err());
    }
    let inside = Arc::new(CompositeScope::new([part("acme")])) as Arc<dyn Scope>;
    assert!(guard.judge(&inside).is_ok());
}
