//! `doctor`: each finding, provoked; and none where all is well.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is a failure")]

mod everywhere;
mod mysql_family;
mod own_servers;
mod postgres;
mod sqlite;

use serde_json::Value;

use crate::{ground::Ground, posthaste::Posthaste};

/// What the doctor says of a patient.
#[derive(Debug)]
struct Diagnosis {
    code: i32,
    report: Value,
}

fn diagnosis(posthaste: Posthaste) -> Diagnosis {
    let ran = posthaste.run();
    assert_eq!(ran.err, "", "{ran:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let diagnosis = Diagnosis { code: ran.code, report };
    let is_well = diagnosis.findings().iter().all(|finding| finding["severity"] == "notice");
    assert_eq!(diagnosis.report["ok"], is_well, "{diagnosis:?}");
    assert_eq!(diagnosis.code, i32::from(!is_well), "{diagnosis:?}");
    diagnosis
}

/// Of this database.
fn diagnose(ground: &Ground, arguments: &[&str]) -> Diagnosis {
    diagnosis(ground.posthaste(&[&["doctor", "--json"], arguments].concat()))
}

/// Of the database that another URL leads to.
fn diagnose_by(ground: &Ground, url: &str, arguments: &[&str]) -> Diagnosis {
    diagnosis(ground.posthaste(&[&["doctor", "--json"], arguments].concat()).env("DATABASE_URL", url))
}

impl Diagnosis {
    fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().expect("a list")
    }

    /// The findings of a code, each as its severity, what is wrong and what to do.
    fn of(&self, code: &str) -> Vec<(&str, &str, &str)> {
        let of_code = self.findings().iter().filter(|finding| finding["code"] == code);
        let texts = of_code
            .map(|finding| ["severity", "summary", "advice"].map(|name| finding[name].as_str().unwrap()));
        texts.map(|[severity, summary, advice]| (severity, summary, advice)).collect()
    }

    /// The one finding of a code: what is wrong and what to do.
    fn only(&self, code: &str, severity: &str) -> (&str, &str) {
        match self.of(code)[..] {
            [(found, summary, advice)] if found == severity => (summary, advice),
            _ => panic!("not one {severity} of {code}: {self:?}"),
        }
    }

    /// Nothing else is found than this, but what is a mere notice.
    fn finds_only(&self, code: &str) {
        let all: Vec<_> = self.findings().iter().filter(|finding| finding["severity"] != "notice").collect();
        assert!(
            !all.is_empty() && all.iter().all(|finding| finding["code"] == code),
            "not only {code}: {self:?}"
        );
    }

    fn has_checked(&self, code: &str) -> bool {
        self.report["checked"].as_array().expect("a list").iter().any(|checked| checked == code)
    }
}
