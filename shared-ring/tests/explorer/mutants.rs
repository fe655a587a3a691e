//! The checks can fail: each mutant breaks a property in the scenario named for it.

use crate::scenarios;
use crate::world::{Scenario, explore};
use shared_ring::Mutant;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The scenario that must find the mutant; `None` for those that take a second CPU (`tests/loom.rs`,
/// `tests/loom_sessions.rs`).
fn killer(mutant: Mutant) -> Option<(&'static str, Scenario)> {
    Some(match mutant {
        Mutant::TimeBeforeLoop => ("first", scenarios::first()),
        Mutant::CommitBeforeWrite => ("exact fill", scenarios::exact_fill()),
        Mutant::DiscardNotCommitted => ("discard", scenarios::discard()),
        Mutant::DiscardDelivered => ("recorder discard", scenarios::recorder_discard()),
        Mutant::DiscardEndsPacket => ("discard", scenarios::discard()),
        Mutant::HeaderBeforePayload => ("crash", scenarios::crash()),
        Mutant::PrefixOverHole => ("recorder crash behind hole", scenarios::recorder_crash_behind_hole()),
        Mutant::PrefixOutOfOrder => ("recorder crash behind hole", scenarios::recorder_crash_behind_hole()),
        Mutant::PrefixLeftBehind => ("recorder crash", scenarios::recorder_crash()),
        Mutant::PrefixOfLater => ("recorder crash behind hole", scenarios::recorder_crash_behind_hole()),
        Mutant::PublishWhenLeft => ("wrap", scenarios::wrap()),
        Mutant::PaddingNotCommitted => ("switch", scenarios::switch()),
        Mutant::NoFullyCommittedTest => ("recorder laps", scenarios::recorder_laps()),
        Mutant::NoFullTest => ("full", scenarios::full()),
        Mutant::CommitCountNotAtomic => ("switch", scenarios::switch()),
        Mutant::LossNotAtomic => ("full", scenarios::full()),
        Mutant::LossLeavesOpen => ("full", scenarios::full()),
        Mutant::CountLossAfterSwitch => ("loss behind", scenarios::loss_behind()),
        Mutant::ExtendedThresholdOffByOne => ("far apart", scenarios::far_apart()),
        Mutant::ReserveNotAtomic => ("first", scenarios::first()),
        Mutant::TrustContentSize => ("hostile", scenarios::hostile()),
        Mutant::GiveBackUncleared => ("crash of a reused ring", scenarios::crash_reused()),
        Mutant::EnterWithoutReference => ("recorder laps", scenarios::recorder_laps()),
        Mutant::LapTagDropped => ("recorder consumer interrupted", scenarios::recorder_consumer_interrupted()),
        Mutant::ReuseBeforeRelease => ("recorder laps", scenarios::recorder_laps()),
        Mutant::PushNotAtomic => ("recorder four", scenarios::recorder_four()),
        Mutant::ForceSwitchGivesUp => ("flush request", scenarios::flush_request()),
        Mutant::RepairUncounted => ("repair", scenarios::repair()),
        Mutant::RepairUncovered => ("recorder repair", scenarios::recorder_repair()),
        Mutant::RepairUnclosed => ("repair switch", scenarios::repair_switch()),
        Mutant::RepairUnheld => ("recorder repair beside consumer", scenarios::recorder_repair_beside_consumer()),
        Mutant::RepairUnpublished => ("repair exact fill", scenarios::repair_exact_fill()),
        Mutant::PublishWithoutRelease | Mutant::PublishGoesBack | Mutant::EnterUnheld | Mutant::EnterWithoutFence => {
            return None;
        }
        Mutant::OpenWithoutRelease
        | Mutant::CloseWithoutFence
        | Mutant::FreeUnasked
        | Mutant::AdoptWithoutFence
        | Mutant::AdoptUnchecked
        | Mutant::LetGoBeforeStop
        | Mutant::SettingsNotRechecked => return None,
        // Of restartable rings: `tests/explorer_restartable`, `tests/loom_restartable.rs`.
        Mutant::WitnessNotRequested
        | Mutant::PositionBeforeWords
        | Mutant::CpuBeforeBegin
        | Mutant::LossUnwitnessed
        | Mutant::OverwriteWithoutFence
        | Mutant::PositionNotRechecked => return None,
    })
}

#[test]
fn every_mutant_is_killed_by_its_scenario() {
    let survivors: Vec<_> = Mutant::ALL
        .iter()
        .filter_map(|&mutant| killer(mutant).map(|(name, scenario)| (mutant, name, scenario)))
        .filter(|(mutant, name, scenario)| {
            let outcome = mutant.run(|| catch_unwind(AssertUnwindSafe(|| explore(scenario))));
            let survived = matches!(outcome, Ok(Ok(_)));
            println!(
                "{mutant:?} in {name}: {}",
                match outcome {
                    Ok(Ok(explored)) => format!("SURVIVED {explored:?}"),
                    Ok(Err(violation)) => violation.to_string(),
                    Err(_) => "panicked".to_owned(),
                }
            );
            survived
        })
        .map(|(mutant, ..)| mutant)
        .collect();

    assert_eq!(survivors, []);
}
