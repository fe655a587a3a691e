//! Mistakes that the checks must find: each mutant changes one line of the producer, the consumer, or one side of sessions
//! while it is switched on, in the thread that switched it on. A check that does not fail with its mutant would prove
//! nothing.
//!
//! Without the feature `verification` there is neither a switch nor code: [`mutated!`] is the constant `false`.

/// Whether the named mutant is switched on in this thread.
#[cfg(feature = "verification")]
macro_rules! mutated {
    ($mutant:ident) => {
        $crate::mutants::Mutant::$mutant.is_on()
    };
}

/// No mutants in what is shipped.
#[cfg(not(feature = "verification"))]
macro_rules! mutated {
    ($mutant:ident) => {
        false
    };
}

#[cfg(feature = "verification")]
pub use switch::Mutant;

#[cfg(feature = "verification")]
mod switch {
    use std::cell::Cell;

    std::thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    macro_rules! mutants {
        ($($(#[doc = $doc:literal])* $name:ident,)*) => {
            /// One mistake.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Mutant {
                $($(#[doc = $doc])* $name,)*
            }

            impl Mutant {
                /// Every mutant.
                pub const ALL: &'static [Self] = &[$(Self::$name),*];
            }
        };
    }

    mutants! {
        /// `commit_seq` is stored with no ordering.
        PublishWithoutRelease,
        /// A published count is stored without looking whether a nested context has published a later value.
        PublishGoesBack,
        /// The time is read once, before the reserve loop.
        TimeBeforeLoop,
        /// The record is committed before its payload is written.
        CommitBeforeWrite,
        /// A reservation that is dropped is not committed.
        DiscardNotCommitted,
        /// A reservation that is dropped is committed as a record.
        DiscardDelivered,
        /// The consumer takes a discarded record for the end of what can be believed.
        DiscardEndsPacket,
        /// The header word, which says that a record is whole, is written before the payload.
        HeaderBeforePayload,
        /// Whoever leaves a sub-buffer publishes it as produced, though earlier writers may not have committed (K42).
        PublishWhenLeft,
        /// The rest of a sub-buffer that a record did not fit into is never committed.
        PaddingNotCommitted,
        /// A sub-buffer is reused without testing that all of its last lap is committed.
        NoFullyCommittedTest,
        /// A sub-buffer is reused without testing that the consumer has given it back.
        NoFullTest,
        /// The commit count is loaded and stored instead of added to.
        CommitCountNotAtomic,
        /// A loss is counted by a load and a store, so that one counted by a nesting context in between disappears.
        LossNotAtomic,
        /// A record is counted as lost while the sub-buffer that it does not fit into stays open.
        LossLeavesOpen,
        /// The loss counts of a packet are read after the sub-buffer was left.
        CountLossAfterSwitch,
        /// A record exactly 2^32 ticks after its packet's beginning gets a short header.
        ExtendedThresholdOffByOne,
        /// A record is reserved by a store where another context may have reserved since.
        ReserveNotAtomic,
        /// A flight recorder's writer enters a sub-buffer without telling the consumer that it does.
        EnterWithoutReference,
        /// A flight recorder's record goes where the exchange word said before, although no writer held the sub-buffer.
        EnterUnheld,
        /// A flight recorder's writer enters a sub-buffer, but what it writes there may be seen before that.
        EnterWithoutFence,
        /// A flight recorder's consumer takes whatever is not referenced, whichever lap it holds.
        LapTagDropped,
        /// A flight recorder's sub-buffer is reused when it is committed, before its exchange word was released.
        ReuseBeforeRelease,
        /// A flight recorder counts what is committed as whole although earlier bytes of the sub-buffer are not.
        PrefixOverHole,
        /// A flight recorder's record goes on with what is whole although as much is not committed as lies before it.
        PrefixOutOfOrder,
        /// A flight recorder's record that another one got in the way of leaves unsaid what is whole.
        PrefixLeftBehind,
        /// A flight recorder compares what is committed with what was reserved earlier.
        PrefixOfLater,
        /// A flight recorder's read count is pushed by a store, over what the consumer or a nested context stored.
        PushNotAtomic,
        /// A forced switch that another context's record got in the way of is taken for done.
        ForceSwitchGivesUp,
        /// The record that a repair gives up is not counted.
        RepairUncounted,
        /// A repair commits a hole without making it one that readers pass over.
        RepairUncovered,
        /// A repair does not close a packet whose closer is gone.
        RepairUnclosed,
        /// A repair touches a flight recorder's sub-buffer without telling the consumer.
        RepairUnheld,
        /// A repair commits what is missing and leaves unpublished what is committed.
        RepairUnpublished,
        /// The consumer believes the producer's `content_size` instead of what it could validate.
        TrustContentSize,
        /// The consumer gives a sub-buffer back without clearing it.
        GiveBackUncleared,
        /// The host writes a session's generation together with its settings, in no order.
        OpenWithoutRelease,
        /// The host closes a session and looks whether a ring is adopted, with no fence in between.
        CloseWithoutFence,
        /// The host gives a closed session's rings away without asking whether the guest has let go of them.
        FreeUnasked,
        /// The guest says that it adopts a session and looks whether it is still there, with no fence in between.
        AdoptWithoutFence,
        /// The guest adopts a session without looking whether it is still there.
        AdoptUnchecked,
        /// The guest tells the host that it has let go of a session before it stops recording for it.
        LetGoBeforeStop,
        /// The guest believes a session's settings without looking whether they changed while it copied them.
        SettingsNotRechecked,
        /// A restartable sequence is begun although the thread was disturbed since it looked at the ring.
        WitnessNotRequested,
        /// A restartable sequence moves the position before the record is there.
        PositionBeforeWords,
        /// A thread takes the CPU that it was on before it began, whichever it is on since.
        CpuBeforeBegin,
        /// A record of a restartable ring is counted as lost whatever happened since the ring was seen to be full.
        LossUnwitnessed,
        /// A restartable flight recorder stores into a sub-buffer's next lap before its position has come there.
        OverwriteWithoutFence,
        /// A restartable flight recorder's consumer does not look at the position after its copy.
        PositionNotRechecked,
    }

    impl Mutant {
        /// Runs `body` with this mutant switched on in this thread.
        pub fn run<T>(self, body: impl FnOnce() -> T) -> T {
            /// Switches off also when `body` panics.
            struct Off;
            impl Drop for Off {
                fn drop(&mut self) {
                    ON.set(None);
                }
            }
            ON.set(Some(self));
            let _off = Off;
            body()
        }

        #[inline]
        pub(crate) fn is_on(self) -> bool {
            ON.get() == Some(self)
        }
    }
}
