//! One self-contained HTML page: summary, plots, and the data for download.

use std::fmt::Write as _;

use super::{Plot, Report, flows_csv, links_csv, samples_csv};

const STYLE: &str = "body{font:15px/1.5 sans-serif;margin:2em auto;max-width:62em;padding:0 1em;color:#222}\
    pre{background:#f6f6f6;padding:1em;overflow-x:auto;font-size:12px}figure{margin:1.5em 0}svg{max-width:100%;height:auto}";

/// The page.
pub(crate) fn html(report: &Report, plots: &[Plot]) -> String {
    let title = format!("{}: {}", escape(&report.scenario), escape(&report.title));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n\
         <body><h1>{title}</h1>\n"
    );
    let _ = writeln!(out, "<pre>{}</pre>", escape(&super::table(report)));
    for plot in plots {
        let _ = writeln!(out, "<figure id=\"{}\">{}</figure>", plot.name, plot.svg);
    }
    out.push_str("<h2>Data</h2><p>");
    let tables = [
        ("flows.csv", Some(flows_csv(report))),
        ("links.csv", Some(links_csv(report))),
        ("samples.csv", samples_csv(report)),
    ];
    for (name, csv) in tables {
        if let Some(csv) = csv {
            let _ = writeln!(out, "<a download=\"{name}\" href=\"data:text/csv,{}\">{name}</a>", percent_encoded(&csv));
        }
    }
    out.push_str("</p></body></html>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text as part of a URL (RFC 3986).
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
