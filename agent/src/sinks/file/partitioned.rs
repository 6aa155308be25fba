//! Batches that are taken apart into several files, by what stands in their records.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::record::{Headers, HeadersBuffer};
use crate::sinks::tests::{batch_of, facts};

fn builder(root: &Path, path: &str, zstd_level: Option<i32>) -> FileSinkBuilder {
    let config = FileSinkConfig {
        root: root.to_path_buf(),
        path: path.to_owned(),
        format: LineFormat::Lines,
        zstd_level,
        root_must_exist: false,
    };
    FileSinkBuilder::new(config, None)
}

/// A batch with a record for each of these values of the header `device`.
fn batch(builder: &FileSinkBuilder, devices: &[Option<&str>]) -> SealedBatch {
    let headers: Vec<_> = devices
        .iter()
        .map(|device| {
            let mut headers = HeadersBuffer::default();
            if let Some(device) = device {
                headers.push("device", device);
            }
            headers
        })
        .collect();
    let payloads: Vec<_> = (0..devices.len()).map(|number| number.to_string()).collect();
    let records: Vec<(&str, Headers<'_>, &[u8])> = headers
        .iter()
        .zip(&payloads)
        .map(|(headers, payload)| ("plant.hall", headers.as_headers(), payload.as_bytes()))
        .collect();
    batch_of(builder, facts(1, records.len() as u64), &records)
}

/// Every file below a folder, without following links, and what stands in it.
fn files(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(root).unwrap().display().to_string();
                found.insert(name, std::fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    found
}

#[tokio::test]
async fn d_33_values_of_records_name_files_that_stay_in_the_root_and_no_two_share_one() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("out");
    let long = "x".repeat(300);
    let values = [
        Some("../../etc/x"),
        Some("/abs"),
        Some("a/b"),
        Some("a_b"),
        Some(".."),
        Some("."),
        Some(""),
        None,
        Some(&long),
        Some("a\0b"),
        Some("é"),
        Some("e\u{301}"),
        Some("A"),
        Some("a"),
        Some("%2e%2e%2f"),
        Some("x\n"),
        Some("x."),
        Some(" x"),
        Some("-rf"),
        Some("CON"),
        Some("7"),
        Some("{}"),
        Some("a/b"),
        Some("A"),
    ];
    let path = "{subject.2}/{header.device}/{header.device}_{epoch}-{batch}.jsonl";
    let builder = builder(&root, path, None);
    let batch = batch(&builder, &values);
    let delivered = builder.build().deliver(&batch, 1).await.unwrap();
    assert_eq!((delivered.records, delivered.files), (24, 22));
    let found = files(home.path());
    for name in found.keys() {
        println!("{name}");
        assert!(name.starts_with("out/hall/"), "{name}");
    }
    assert_eq!(found.len(), 22);
    // Each value has its records, in order, and nobody else's.
    let mut expected: BTreeMap<Option<&str>, String> = BTreeMap::new();
    for (number, value) in values.iter().enumerate() {
        *expected.entry(*value).or_default() += &format!("{number}\n");
    }
    let mut contents: Vec<_> = found.values().cloned().collect();
    let mut expected: Vec<_> = expected.into_values().collect();
    contents.sort();
    expected.sort();
    assert_eq!(contents, expected);
    // The same names at every attempt, also of another run.
    let again = builder.build().deliver(&batch, 2).await.unwrap();
    assert_eq!((again.records, again.already, again.files), (24, 24, 0));
    assert_eq!(files(home.path()), found);
}

#[tokio::test]
async fn d_33_a_folder_that_became_a_link_leads_nowhere() {
    let (home, evil) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(evil.path(), home.path().join("out")).unwrap();
    let builder = builder(home.path(), "out/{header.device}-{epoch}-{batch}.jsonl", None);
    let batch = batch(&builder, &[Some("a"), Some("b")]);
    let error = builder.build().deliver(&batch, 1).await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    assert!(files(evil.path()).is_empty());
}

#[tokio::test]
async fn an_attempt_that_wrote_some_of_the_files_is_gone_on_with_and_another_content_is_a_conflict()
{
    let root = tempfile::tempdir().unwrap();
    let builder = builder(root.path(), "{header.device}/{epoch}-{batch}.zst", Some(3));
    let devices: Vec<_> = ["a", "b", "a", "c"].map(Some).to_vec();
    let batch = batch(&builder, &devices);
    let name = |device: &str| root.path().join(device).join("00001abcde-0000000000000001.zst");
    std::fs::create_dir(root.path().join("b")).unwrap();
    std::fs::write(name("b"), zstd::encode_all(&b"1\n"[..], 1).unwrap()).unwrap();
    let delivered = builder.build().deliver(&batch, 2).await.unwrap();
    assert_eq!((delivered.records, delivered.already, delivered.files), (4, 1, 2));
    assert_eq!(zstd::decode_all(std::fs::File::open(name("a")).unwrap()).unwrap(), b"0\n2\n");
    std::fs::write(name("c"), zstd::encode_all(&b"x\n"[..], 1).unwrap()).unwrap();
    let error = builder.build().deliver(&batch, 3).await.unwrap_err();
    assert_eq!(error.class, Class::Conflict);
    assert_eq!(error.reason.matches("sha256").count(), 1, "{error}");
    assert!(error.reason.contains("/c/"), "{error}");
}

#[tokio::test]
async fn what_was_fixed_names_all_files_and_counts_whatever_the_config_says_later() {
    let root = tempfile::tempdir().unwrap();
    let sealed = builder(root.path(), "{header.device}-{epoch}-{batch}", None);
    let batch = batch(&sealed, &[Some("a-b"), None]);
    assert_eq!(
        &*batch.fixed,
        r#"{"name":"","format":"lines","compression":null,"by":["header.device"],"files":[{"key":"a-b","name":"a-b-00001abcde-0000000000000001"},{"key":"~missing","name":"~missing-00001abcde-0000000000000001"}]}"#
    );
    let later = builder(root.path(), "{epoch}-{batch}", None);
    assert_eq!(later.build().deliver(&batch, 1).await.unwrap().files, 2);
    assert_eq!(files(root.path()).len(), 2);
}
