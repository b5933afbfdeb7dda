//! The documents: read from a folder, or made up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// A text, as its paragraphs.
#[derive(Debug)]
pub(crate) struct Document {
    /// Where it is under its folder. The same path is the same document.
    pub(crate) path: String,
    pub(crate) paragraphs: Vec<String>,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Corpus {
    pub(crate) documents: Vec<Arc<Document>>,
    /// What could not be read, and why.
    pub(crate) skipped: Vec<(PathBuf, String)>,
}

/// Reads the files `*.md`, `*.markdown` and `*.txt` under a folder. One that cannot be read is
/// skipped.
///
/// # Errors
/// When the folder itself cannot be read, or holds no document.
pub(crate) fn read_folder(folder: &Path) -> Result<Corpus, String> {
    let refused =
        |error: io::Error| format!("cannot read the folder {}: {error}", folder.display());
    if !fs::metadata(folder).map_err(refused)?.is_dir() {
        return Err(format!("{} is not a folder", folder.display()));
    }
    let mut corpus = Corpus::default();
    corpus.walk(folder, folder).map_err(refused)?;
    corpus.refuse_empty(folder)
}

/// Reads the documentation of the repository that this example was compiled in.
///
/// # Errors
/// When there is none.
pub(crate) fn read_repository() -> Result<Corpus, String> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut corpus = Corpus::default();
    for part in [repository.join("docs"), repository.join("README.md")] {
        if part.is_dir() {
            corpus.walk_or_skip(repository, &part);
        } else if part.exists() {
            corpus.read(repository, &part);
        }
    }
    corpus.refuse_empty(repository)
}

impl Corpus {
    fn walk(&mut self, root: &Path, folder: &Path) -> io::Result<()> {
        let mut paths = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        for path in paths {
            let hidden = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if hidden {
                continue;
            }
            // Folders behind links are left alone: they may lead back here.
            if path.is_dir() && !path.is_symlink() {
                self.walk_or_skip(root, &path);
            } else if is_document(&path) && !path.is_dir() {
                self.read(root, &path);
            }
        }
        Ok(())
    }

    fn walk_or_skip(&mut self, root: &Path, folder: &Path) {
        if let Err(error) = self.walk(root, folder) {
            self.skip(folder, error);
        }
    }

    fn skip(&mut self, path: &Path, reason: impl ToString) {
        self.skipped.push((path.to_owned(), reason.to_string()));
    }

    fn read(&mut self, root: &Path, path: &Path) {
        // A pipe or a device of this name would be waited for, for ever.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return self.skip(path, "it is not a regular file");
        }
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return self.skip(path, "it is not UTF-8 text");
            }
            Err(error) => return self.skip(path, error),
        };
        let paragraphs = paragraphs(&text);
        if paragraphs.is_empty() {
            return self.skip(path, "there is no text in it");
        }
        let path = path.strip_prefix(root).unwrap_or(path);
        self.documents.push(Arc::new(Document {
            path: path.display().to_string(),
            paragraphs,
        }));
    }

    fn refuse_empty(self, folder: &Path) -> Result<Self, String> {
        if !self.documents.is_empty() {
            return Ok(self);
        }
        let mut message = format!(
            "no documents under {}: it needs files *.md or *.txt with text in them, or take --make N",
            folder.display()
        );
        for (path, reason) in &self.skipped {
            message.push_str(&format!("\n  skipped {}: {reason}", path.display()));
        }
        Err(message)
    }
}

fn is_document(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| {
        ["md", "markdown", "txt"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(extension))
    })
}

/// The paragraphs of a text: what stands between empty lines. Of Markdown's marks the headings,
/// tables, code and link targets are left out.
fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut in_code = false;
    for line in text.lines().map(str::trim) {
        let fence = line.starts_with("```");
        in_code ^= fence;
        let target = line.starts_with('[') && line.contains("]: ");
        let left_out = in_code || fence || target || line.starts_with(['#', '|']);
        match paragraphs.last_mut() {
            Some(last) if !left_out && !line.is_empty() => {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(line);
            }
            Some(last) if !last.is_empty() => paragraphs.push(String::new()),
            _ => {}
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

const PARAGRAPHS: usize = 8;
/// The same documents on every run.
const SEED: u64 = 20_260_101;

/// Writes `count` documents of eight paragraphs into a folder, the same ones every time.
///
/// # Errors
/// When they cannot be written.
pub(crate) fn write_made_up(folder: &Path, count: u32) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(SEED);
    for number in 1..=count {
        let path = folder.join(format!("document-{number:05}.md"));
        let text = made_up(&mut random, number);
        fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn made_up(random: &mut StdRng, number: u32) -> String {
    let subjects: Vec<_> = SUBJECTS.sample(random, 3).copied().collect();
    let mut text = format!("# Report {number}\n");
    for _ in 0..PARAGRAPHS {
        text.push('\n');
        for _ in 0..random.random_range(4..=7) {
            let mut pick = |from: &[&'static str]| from.choose(random).copied().unwrap_or("");
            let subject = pick(&subjects);
            let sentence = format!(
                "The {subject} {} the {} {}. ",
                pick(VERBS),
                pick(OBJECTS),
                pick(CIRCUMSTANCES)
            );
            text.push_str(&sentence);
        }
        text.push('\n');
    }
    text
}

const SUBJECTS: &[&str] = &[
    "harbour authority",
    "grain elevator",
    "tide gauge",
    "lighthouse crew",
    "shipping ledger",
    "river pilot",
    "customs office",
    "weather station",
    "dredging company",
    "fishing fleet",
    "salvage team",
    "ferry timetable",
    "container crane",
    "quarantine officer",
    "night watchman",
    "cartographer",
];

const VERBS: &[&str] = &[
    "inspects",
    "delays",
    "replaces",
    "records",
    "disputes",
    "repairs",
    "measures",
    "relies on",
    "reports on",
    "pays for",
];

const OBJECTS: &[&str] = &[
    "northern breakwater",
    "insurance premium",
    "monthly inventory",
    "signal lamp",
    "ballast water",
    "southern channel",
    "arrival list",
    "mooring fee",
    "cargo manifest",
    "fuel reserve",
    "pressure reading",
    "sandbank survey",
];

const CIRCUMSTANCES: &[&str] = &[
    "before the autumn storms",
    "whenever the barometer falls",
    "at the request of the council",
    "after every spring tide",
    "without a written order",
    "for the third year in a row",
    "as the old contract demands",
    "while the dock is closed",
    "in spite of the new tariff",
];
