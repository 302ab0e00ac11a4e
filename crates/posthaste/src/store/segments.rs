//! Messages into segments, where the database leaves that to us: SQLite and MySQL.

use std::collections::BTreeMap;

use crate::limits::SEGMENT;

/// The segments of a tick, as an array of `[partition_id, first, last, ids]`: places of the first and the last message
/// behind the partition's head, from 1, and the ids as the text of an array.
pub(crate) fn segments(taken: &[(i64, i32)]) -> String {
    let mut partitions: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for (id, partition_id) in taken {
        partitions.entry(*partition_id).or_default().push(*id);
    }
    let size = usize::try_from(SEGMENT).unwrap_or(usize::MAX);
    let segments = partitions.iter().flat_map(|(partition_id, ids)| {
        ids.chunks(size).enumerate().map(move |(place, ids)| {
            let first = place * size + 1;
            (partition_id, first, first + ids.len() - 1, array(ids))
        })
    });
    json(&segments.collect::<Vec<_>>())
}

/// Which partitions a tick touched.
pub(super) fn partitions(taken: &[(i64, i32)]) -> Vec<i32> {
    let mut partitions: Vec<_> = taken.iter().map(|(_, partition_id)| *partition_id).collect();
    partitions.sort_unstable();
    partitions.dedup();
    partitions
}

/// Numbers as the text of an array.
pub(super) fn array(ids: &[i64]) -> String {
    json(&ids)
}

/// What has no float, no map and no foreign text is always JSON.
pub(super) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_divided_by_partition_and_keep_their_order() {
        assert_eq!(segments(&[]), "[]");
        let taken = [(3, 7), (4, 2), (9, 7)];
        assert_eq!(segments(&taken), r#"[[2,1,1,"[4]"],[7,1,2,"[3,9]"]]"#);
        assert_eq!(partitions(&taken), [2, 7]);
    }

    #[test]
    fn a_segment_has_an_end() {
        let taken: Vec<_> = (1..=SEGMENT * 2 + 1).map(|id| (id, 1)).collect();
        let segments: Vec<(i32, i64, i64, String)> = serde_json::from_str(&segments(&taken)).unwrap();
        let bounds: Vec<_> = segments.iter().map(|(_, first, last, _)| (*first, *last)).collect();
        assert_eq!(bounds, [(1, 256), (257, 512), (513, 513)]);
        let ids: Vec<i64> = segments
            .iter()
            .flat_map(|(_, _, _, ids)| serde_json::from_str::<Vec<i64>>(ids).unwrap())
            .collect();
        assert_eq!(ids, (1..=513).collect::<Vec<_>>());
    }
}
