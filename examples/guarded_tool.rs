//! A tool that fetches pages, and what stands around it: a list of principals, a list of callers, a
//! size cap, a check of the URL, a guard that reads a table, and a look at what comes out.
//!
//! None of it is in the tool. Every guard runs as a job of its own, so each judgment below is on the
//! bus like any other job.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nucleo_runtime::db::sqlite::SqliteProvider;
use nucleo_runtime::events::{Event, EventFilter, EventKind, Observer};
use nucleo_runtime::guard::{
    AgentTypeAllowList, ContentGuard, Gate, Guard, Guards, JobInput, PayloadSizeCap, PiiDetection,
    PrincipalAllowList, UrlGuard, json_text,
};
use nucleo_runtime::{
    Doer, Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, JobType,
    Metadata, OrchestratorContext, Workflow, job_fn,
};

/// What the model asks for.
#[derive(serde::Serialize)]
struct Fetch {
    url: String,
}

impl JobInput for Fetch {
    fn text(&self) -> Option<String> {
        json_text(self)
    }
}

/// Refuses URLs that a table lists. It declares the database as any job does, and waits for it.
struct NotBlocked {
    database: Arc<SqliteProvider>,
}

impl Guard for NotBlocked {
    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().provider(&self.database).read_only()
    }
}

impl ContentGuard for NotBlocked {
    type Target = Fetch;

    fn judge(&self, fetch: &Fetch, gate: &Gate<'_>) -> Result<(), JobError> {
        let query = "SELECT count(*) FROM blocked WHERE ?1 LIKE prefix || '%'";
        let blocked: i64 = gate
            .resources()?
            .get(&self.database)?
            .with(|conn| conn.query_row(query, [&fetch.url], |row| row.get(0)))?;
        if blocked > 0 {
            return Err(JobError::guardrail("that site is blocked; use another"));
        }
        Ok(())
    }
}

/// Pretends to fetch a page. One that does for real has to look at the address that it is about to
/// connect to as well, with `UrlGuard::check_address`: a harmless name may lead anywhere.
struct FetchPage {
    fetch: Arc<Fetch>,
    database: Arc<SqliteProvider>,
}

impl Job for FetchPage {
    type Output = String;

    fn job_type(&self) -> JobType {
        JobType::Tool
    }

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::clone(&self.fetch) as _)
    }

    fn guards(&self) -> Guards {
        Guards::none()
            .admission(PrincipalAllowList::new(["alice"]))
            .admission(AgentTypeAllowList::new(Vec::<String>::new()).and::<Researcher>())
            .input(PayloadSizeCap::new(80))
            .input(UrlGuard::new(|fetch: &Fetch| vec![fetch.url.clone()]).schemes(["https"]))
            .input(NotBlocked {
                database: Arc::clone(&self.database),
            })
            .output(PiiDetection)
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<String, JobError> {
        Ok(if self.fetch.url.ends_with("/staff") {
            "Write to ann@example.org".to_owned()
        } else {
            "It will rain".to_owned()
        })
    }
}

/// The agent: fetches what it is told to.
struct Researcher {
    database: Arc<SqliteProvider>,
}

impl Doer for Researcher {
    type Output = ();

    fn execute(&mut self, context: &OrchestratorContext) -> Result<(), JobError> {
        let long = format!("https://example.com/?{}", "x".repeat(80));
        for url in [
            "https://example.com/weather",
            "http://example.com/weather",
            "https://0x7f.1/admin",
            "https://blocked.example/page",
            &long,
            "https://example.com/staff",
        ] {
            let tool = FetchPage {
                fetch: Arc::new(Fetch { url: url.into() }),
                database: Arc::clone(&self.database),
            };
            let answer = match context.submit(tool)?.get() {
                Ok(page) => (*page).clone(),
                Err(error) => error.llm_message(),
            };
            let cut = if url.len() > 40 { "..." } else { "" };
            println!("{url:.40}{cut}\n    {answer}");
        }
        Ok(())
    }
}

/// Counts verdicts by guard.
#[derive(Default)]
struct Verdicts(Mutex<BTreeMap<String, u32>>);

impl Observer for Verdicts {
    fn observe(&self, event: &Arc<Event>) {
        let ended = matches!(event.kind(), EventKind::JobCompleted | EventKind::JobFailed);
        let Some(snapshot) = event.snapshot().filter(|_| ended) else {
            return;
        };
        if let Some(verdict) = snapshot.metadata().get(Metadata::GUARD_VERDICT)
            && let Ok(mut counts) = self.0.lock()
        {
            *counts
                .entry(format!("{} {verdict}", snapshot.display_name()))
                .or_default() += 1;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let database = Arc::new(
        SqliteProvider::builder(folder.path().join("sites.db"))
            .name("sites")
            .open()?,
    );
    let dispatcher = JobDispatcher::builder().database(&database).build()?;
    dispatcher.start()?;
    let verdicts = Arc::new(Verdicts::default());
    let counting = dispatcher.subscribe(EventFilter::all(), Arc::clone(&verdicts) as _)?;

    let alice = Workflow::new("alice", "research")?;
    let (needed, prepared) = (Arc::clone(&database), Arc::clone(&database));
    let prepare = job_fn(
        move || JobRequirements::none().provider(&needed),
        move |resources, _| {
            resources.get(&prepared)?.with(|conn| {
                conn.execute_batch(
                    "CREATE TABLE blocked (prefix TEXT);
                     INSERT INTO blocked VALUES ('https://blocked.example/');",
                )
            })
        },
    );
    dispatcher.submit(&alice, prepare)?.get()?;

    let agent = || Researcher {
        database: Arc::clone(&database),
    };
    dispatcher.submit(&alice, agent())?.get()?;

    // The same tool without an agent, and for somebody else.
    let tool = || FetchPage {
        fetch: Arc::new(Fetch {
            url: "https://example.com/weather".to_owned(),
        }),
        database: Arc::clone(&database),
    };
    let mallory = Workflow::new("mallory", "research")?;
    for workflow in [&alice, &mallory] {
        let refused = dispatcher.submit(workflow, tool())?.get();
        if let Err(error) = refused {
            println!("{}, directly\n    {}", workflow.user(), error.llm_message());
        }
    }
    dispatcher.shutdown(Duration::from_secs(5))?;
    drop(counting);
    if let Ok(counts) = verdicts.0.lock() {
        for (verdict, times) in counts.iter() {
            println!("{times} x {verdict}");
        }
    }
    Ok(())
}
