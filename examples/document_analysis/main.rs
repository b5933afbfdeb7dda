//! Agents over a folder of documents, on a few database connections.
//!
//! Every document gets an agent: it asks a model what the text is about, searches the other
//! documents for it, has the model summarize, saves that in a transaction, and has the model say it
//! in a line. Each of these is a job that holds only what it uses, so a hundred agents whose time
//! goes into model calls get by with three connections.
//!
//! - `jobs.rs` is the heart: what the jobs declare, and what they do
//! - `model.rs` is the stand-in for a language model, `store.rs` the database
//! - `corpus.rs` finds the documents, `report.rs` tells how it went, `cli.rs` reads the flags

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nucleo_runtime::db::sqlite::SqliteProvider;
use nucleo_runtime::events::{Event, EventFamily, EventFilter};
use nucleo_runtime::llm::ScriptedClient;
use nucleo_runtime::models::{Catalog, Grade, ModelBound, ModelSpec};
use nucleo_runtime::observe::EventLogger;
use nucleo_runtime::{ErrorKind, JobDispatcher, JobError, Workflow};

use cli::{Models, Options, Request, Source};
use corpus::{Corpus, Document};
use jobs::{AnalyseDocument, Analysis, LoadDocuments, PrepareDatabase};
use report::{Bar, Figures, Tally};

mod cli;
mod corpus;
mod jobs;
mod model;
mod report;
mod store;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    // The library logs and installs no logger; a program does. RUST_LOG sets what is shown:
    // `document_analysis=info` how agents and their jobs begin and end.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let finished = match cli::parse(std::env::args_os().skip(1)) {
        Ok(Request::Help) => {
            println!("{}", cli::HELP);
            Ok(true)
        }
        Ok(Request::Run(options)) => run(&options),
        Err(error) => Err(error.into()),
    };
    match finished {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Analyses the documents; whether all went well.
fn run(options: &Options) -> Result<bool, Failure> {
    // Made-up documents and a database that nobody wants to keep go away with it.
    let temporary = tempfile::tempdir()?;
    let corpus = find(&options.source, temporary.path())?;
    for (path, reason) in &corpus.skipped {
        eprintln!("skipped {}: {reason}", path.display());
    }
    let file = match &options.database {
        Some(file) => file.clone(),
        None => temporary.path().join("analysis.db"),
    };
    let database = Arc::new(
        SqliteProvider::builder(&file)
            .name("documents")
            .max_connections(options.connections)
            .open()?,
    );
    let dispatcher = dispatcher(options, &database)?;
    dispatcher.start()?;
    let tally = Arc::new(Tally::default());
    let counting = dispatcher.subscribe(Tally::filter(), Arc::clone(&tally) as _)?;
    if std::env::var_os("RUST_LOG").is_some() {
        dispatcher
            .subscribe(EventFilter::all(), Arc::new(EventLogger::new()))?
            .detach();
    }

    let workflow = Workflow::new("example", "document-analysis")?;
    let interrupted = stop_at_ctrl_c(&dispatcher, &workflow)?;
    let began = Instant::now();
    let analysed = prepare(&dispatcher, &workflow, &database, &corpus).and_then(|()| {
        analyse(
            &dispatcher,
            &workflow,
            &database,
            &corpus,
            options.agents,
            &interrupted,
        )
    });
    let wall = began.elapsed();

    // Delivers every event, so that the tally is complete.
    let end = dispatcher.shutdown(Duration::from_secs(10))?;
    drop(counting);
    for job in end.abandoned {
        eprintln!("{job} did not end and was left behind");
    }
    let outcomes = analysed?;
    let stats = database.stats();
    let saved = store::count_saved(&file, workflow.id())?;
    let figures = Figures {
        documents: corpus.documents.len() + corpus.skipped.len(),
        // An agent that was told to stop after it had saved counts as what it did.
        failed: corpus
            .documents
            .len()
            .saturating_sub(usize::try_from(saved).unwrap_or_default()),
        skipped: corpus.skipped.len(),
        wall,
        peak_connections: stats.peak_open,
        connection_held: stats.held,
        statements: stats.in_calls,
        saved,
    };
    outcomes.tell(options.database.is_some());
    eprint!("{}", figures.table(&tally));
    if options.json {
        writeln!(io::stdout(), "{}", figures.json(&tally))?;
    }
    Ok(figures.failed == 0 && figures.skipped == 0)
}

fn find(source: &Source, temporary: &Path) -> Result<Corpus, Failure> {
    Ok(match source {
        Source::Repository => corpus::read_repository()?,
        Source::Folder(folder) => corpus::read_folder(folder)?,
        Source::Make(count) => {
            let folder = temporary.join("documents");
            std::fs::create_dir(&folder)?;
            corpus::write_made_up(&folder, *count)?;
            corpus::read_folder(&folder)?
        }
    })
}

/// A dispatcher with the models of a catalog and one database. The jobs say how much model they
/// need, so another catalog needs no change of them.
fn dispatcher(options: &Options, database: &Arc<SqliteProvider>) -> Result<JobDispatcher, Failure> {
    let client = ScriptedClient::from_fn(model::answer).latency(options.latency);
    Ok(JobDispatcher::builder()
        .catalog(catalog(&options.models)?)
        .client("scripted", Arc::new(client))
        .database(database)
        .build()?)
}

fn catalog(models: &Models) -> Result<Catalog, Failure> {
    match models {
        Models::Catalog(file) => Ok(Catalog::read(file)?),
        Models::Extractive { tokens_per_minute } => {
            let quota = ModelBound::Quota {
                tokens_per_minute: *tokens_per_minute,
                requests_per_minute: None,
            };
            let spec = ModelSpec::new("extractive", "scripted", quota)?.grade(Grade::Small);
            Ok(Catalog::builder()
                .model(spec)
                .pin(Grade::Small, ["extractive"])
                .build()?)
        }
    }
}

/// Has Ctrl-C stop the agents. What they saved stays, and the run ends as every run does: with a
/// shutdown and its figures.
fn stop_at_ctrl_c(
    dispatcher: &JobDispatcher,
    workflow: &Workflow,
) -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let (raised, dispatcher, workflow) = (
        Arc::clone(&interrupted),
        dispatcher.clone(),
        workflow.clone(),
    );
    ctrlc::set_handler(move || {
        raised.store(true, Ordering::SeqCst);
        dispatcher.cancel_workflow(workflow.id(), "interrupted by Ctrl-C");
    })?;
    Ok(interrupted)
}

/// Puts the documents into the database.
fn prepare(
    dispatcher: &JobDispatcher,
    workflow: &Workflow,
    database: &Arc<SqliteProvider>,
    corpus: &Corpus,
) -> Result<(), Failure> {
    let prepare = PrepareDatabase {
        database: Arc::clone(database),
    };
    let load = LoadDocuments {
        database: Arc::clone(database),
        documents: corpus.documents.clone(),
    };
    dispatcher.submit(workflow, prepare)?.get()?;
    dispatcher.submit(workflow, load)?.get()?;
    Ok(())
}

/// Runs an agent a document, `agents` of them at once: as one ends, the next is submitted.
fn analyse(
    dispatcher: &JobDispatcher,
    workflow: &Workflow,
    database: &Arc<SqliteProvider>,
    corpus: &Corpus,
    agents: usize,
    interrupted: &AtomicBool,
) -> Result<Outcomes, Failure> {
    let (ended, endings) = mpsc::channel();
    let filter = EventFilter::all()
        .family(EventFamily::Lifecycle)
        .job_type("AnalyseDocument");
    let _subscription = dispatcher.subscribe(
        filter,
        Arc::new(move |event: &Arc<Event>| {
            if let Some(agent) = event.snapshot().filter(|_| event.is_terminal()) {
                // Nobody listens any more once the last agent has ended.
                let _ = ended.send(agent.job_id().to_owned());
            }
        }),
    )?;
    let mut outcomes = Outcomes::default();
    // One or the other: a log breaks a bar.
    let mut bar = Bar::new(corpus.documents.len(), !log::log_enabled!(log::Level::Info));
    let mut next = corpus.documents.iter();
    let mut running = HashMap::new();
    loop {
        outcomes.gave_up |= interrupted.load(Ordering::SeqCst);
        while running.len() < agents && !outcomes.gave_up {
            let Some(document) = next.next() else { break };
            let agent = AnalyseDocument {
                database: Arc::clone(database),
                document: Arc::clone(document),
            };
            let handle = dispatcher.submit(workflow, agent)?;
            if interrupted.load(Ordering::SeqCst) {
                // It came after the others had been told.
                handle.cancel("interrupted by Ctrl-C");
            }
            running.insert(handle.job_id().to_owned(), (Arc::clone(document), handle));
        }
        bar.show(outcomes.ended(), outcomes.failed.len());
        if running.is_empty() {
            return Ok(outcomes);
        }
        let id = endings.recv()?;
        let Some((document, handle)) = running.remove(&id) else {
            continue;
        };
        let service_failed = outcomes.add(&document, handle.get());
        if service_failed && !outcomes.gave_up {
            // What is locked or broken is so for the others too: end here, keep what was saved.
            outcomes.gave_up = true;
            dispatcher.cancel_workflow(workflow.id(), "the database failed another agent");
        }
    }
}

/// How the agents ended.
#[derive(Default)]
struct Outcomes {
    analysed: Vec<Arc<Analysis>>,
    failed: Vec<(String, JobError)>,
    gave_up: bool,
}

impl Outcomes {
    fn ended(&self) -> usize {
        self.analysed.len() + self.failed.len()
    }

    /// Keeps how an agent ended; whether a service failed it.
    fn add(&mut self, document: &Document, result: Result<Arc<Analysis>, JobError>) -> bool {
        match result {
            Ok(analysis) => {
                self.analysed.push(analysis);
                false
            }
            Err(error) => {
                let service = matches!(error.kind(), ErrorKind::ExternalService { .. });
                self.failed.push((document.path.clone(), error));
                service
            }
        }
    }

    fn tell(&self, keeps_database: bool) {
        const SHOWN: usize = 5;
        for analysis in self.analysed.iter().take(SHOWN) {
            eprintln!("{}: {}", analysis.path, analysis.headline);
        }
        let causes = self
            .failed
            .iter()
            .filter(|(_, error)| !error.is_cancelled());
        for (path, error) in causes.take(SHOWN) {
            eprintln!("failed {path}: {error}");
        }
        if self.gave_up {
            let kept = if keeps_database {
                "what was saved is in the database"
            } else {
                "what was saved goes with the temporary database; --db keeps it"
            };
            eprintln!("the other agents were told to stop; {kept}");
        }
    }
}
