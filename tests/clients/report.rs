//! The table of what works: `docs/compatibility.md`, and why pyverbs skips what it skips.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::case::{Case, Client, Package, Place};
use super::ladder::pyverbs;
use super::stage::{Passed, Stage};

/// Collects results.
#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<(Case, Result<String, String>)>,
    /// Tests that pyverbs skipped, by the reason that it gave.
    skips: BTreeMap<String, Vec<String>>,
    python: PathBuf,
}

impl Report {
    pub(crate) fn new(stage: &Stage) -> Result<Report, String> {
        Ok(Report { rows: Vec::new(), skips: BTreeMap::new(), python: stage.venv().join("bin/python") })
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Remembers what else a case has shown.
    pub(crate) fn note(&mut self, case: &Case, passed: &Passed) {
        if case.client == Client::Pyverbs {
            for (test, reason) in pyverbs::skipped(&passed.said) {
                let tests = self.skips.entry(reason).or_default();
                if !tests.contains(&test) {
                    tests.push(test);
                }
            }
        }
    }

    pub(crate) fn add(&mut self, case: Case, result: Result<String, String>) {
        self.rows.push((case, result));
    }

    /// Writes both documents.
    pub(crate) fn write(&self) -> Result<(), String> {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let put =
            |name: &str, text: String| fs::write(docs.join(name), text).map_err(|e| format!("write docs/{name}: {e}"));
        put("compatibility.md", self.compatibility()?)?;
        put("pyverbs-skips.md", self.pyverbs_skips())
    }

    fn compatibility(&self) -> Result<String, String> {
        let mut text = String::from(
            "# Compatibility\n\n\
             Written by `./x clients --write`: unmodified programs for EFA, each started by `srd run` as an unprivileged user, \
             in network\nnamespaces made for it. *Loss* is 1 % of the packets in each direction; *dead paths* are two of the \
             16, one of which dies\nlater; *disorder* is packets that overtake each other and arrive twice, and completions in \
             random order; *xdp* is AF_XDP at both hosts, *xdp-udp* at\nthe first (the server) only, with its four capabilities. Every case also\nchecks that its data went through the device.\n",
        );
        let mut clients: Vec<Client> = self.rows.iter().map(|(case, _)| case.client).collect();
        clients.sort_unstable();
        clients.dedup();
        for client in clients {
            let version = self.version(client.package())?;
            text += &format!(
                "\n## {}{version}\n\n| command | one host | two hosts | result |\n|---|---|---|---|\n",
                client.name()
            );
            let mut rows: Vec<(String, [Vec<String>; 2], Vec<String>)> = Vec::new();
            for (case, result) in self.rows.iter().filter(|(case, _)| case.client == client) {
                let command = case.command();
                if rows.last().is_none_or(|(last, ..)| *last != command) {
                    rows.push((command, Default::default(), Vec::new()));
                }
                let Some((_, places, results)) = rows.last_mut() else { continue };
                places[usize::from(case.place == Place::TwoHosts)].push(case.conditions());
                let words = match result {
                    Ok(words) => words.clone(),
                    Err(why) => format!("**{}, {}: {why}**", case.place, case.network),
                };
                if !results.contains(&words) {
                    results.push(words);
                }
            }
            for (command, [one, two], results) in rows {
                text +=
                    &format!("| `{command}` | {} | {} | {} |\n", one.join(", "), two.join(", "), results.join("; "));
            }
        }
        Ok(text)
    }

    fn pyverbs_skips(&self) -> String {
        let mut text = String::from(
            "# What pyverbs skips\n\n\
             Written by `./x clients --write`. rdma-core's tests skip themselves where the device lacks what they are about. \
             None of\nthese would run on EFA hardware with the same rdma-core.\n\n| tests | reason that they give | on EFA |\n|---|---|---|\n",
        );
        for (reason, tests) in &self.skips {
            let ours = pyverbs::REASONS.iter().find(|(part, _)| reason.contains(part)).map_or("", |(_, ours)| ours);
            let mut tests: Vec<&str> = tests.iter().map(String::as_str).collect();
            tests.sort_unstable();
            text += &format!("| {} | {reason} | {ours} |\n", tests.join(", ").replace("test_", ""));
        }
        text
    }

    fn version(&self, package: Package) -> Result<String, String> {
        let mut ask = match package {
            Package::Ours => return Ok(String::new()),
            Package::Debian(name) => {
                let mut ask = Command::new("dpkg-query");
                ask.args(["--show", "--showformat", "${Version}", name]);
                ask
            }
            Package::PyPi(name) => {
                let mut ask = Command::new(&self.python);
                ask.arg("-c").arg(format!("import importlib.metadata as m; print(m.version('{name}'), end='')"));
                ask
            }
        };
        let out = ask.output().map_err(|e| format!("{ask:?}: {e}"))?;
        Ok(format!(" {}", String::from_utf8_lossy(&out.stdout)))
    }
}
