"""For each planted mistake the number of the hint that is about it, as a reader of the lesson says; 0 for none."""

from __future__ import annotations

from tests.checks.wrong_answers import Wrong

HINTS: dict[str, dict[int, str]] = {
    "lesson_01.hello": {
        0: "returns_the_text says_it_twice says_more breaks_the_line says_it_to_stderr",
        1: "cuts_the_spaces_off joins_the_name "
        "forgets_the_mark counts_from_one name_is_written_in prints_the_world_size forgets_the_f tells_the_size "
        "puts_commas_between leaves_out_a_space writes_rank_small writes_the_name_large",
        2: "speaks_for_all only_rank_zero_prints",
    },
    "lesson_01.predictions": {
        1: (
            "both_send_first_finishes one_sends_first_hangs wait_comes_last_hangs wait_comes_last_fails "
            "changed_too_early_finishes changed_too_early_hangs one_recv_too_many_fails "
            "one_recv_too_many_deadlock a_list_of_outcomes "
        ),
    },
    "lesson_01.times": {
        1: "isend_waits send_is_buffered starts_when_sent second_is_free in_words not_a_number a_tensor_of_two",
    },
    "lesson_01.ping_pong": {
        0: "gives_the_ball_itself the_second_player_does_not_wait "
        "the_last_rank_plays only_the_formula an_int32_ball an_int64_ball a_float64_ball a_ball_of_three "
        "plays_by_all_reduce only_rank_zero_returns sends_one_more_than_the_ball",
        1: "serves_a_two one_player_adds adds_after_the_last a_new_ball_every_round spectators_count_too "
        "adds_what_came_back one_way_a_round holds_a_one_before_it_plays",
        2: "both_serve",
    },
    "lesson_01.relay": {
        0: "adds_the_first_of_the_list starts_from_the_last takes_away does_not_wait_for_its_irecv "
        "forgets_its_own adds_twice sums_the_argument passes_on_what_it_read",
        1: (
            "returns_nothing everybody_sends_to_the_last all_receive_first always_closes all_return_what_they_have "
            "all_send_to_the_end"
        ),
        2: "receives_as_many_as_there_are_rows receives_into_one_row flattens "
        "adds_into_the_input receives_into_its_own_number receives_in_float32 makes_a_buffer_like_rank_zeros",
    },
    "lesson_01.read_a_hang": {
        1: "thinks_they_receive looks_to_the_left left_open ranks_as_text one_row_only a_rank_too_many "
        "the_rank_comes_first with_the_modules_name",
    },
    "lesson_01.shift_by_parity": {
        0: (
            "returns_its_tensor "
            "shifts_to_the_left reads_the_list cuts_the_fraction sends_halves sends_and_reads_the_list_all_the_same "
            "sends_the_whole_list receives_into_what_it_sends rounds_to_two_digits a_row_by_parity "
        ),
        1: "still_sends_first all_receive only_rank_zero_starts parity_by_isend only_the_last_rank_receives_first",
    },
    "lesson_01.shift_at_once": {
        0: "receives_into_its_own reads_before_it_waits never_waits_for_its_irecv sends_the_whole_list_at_once "
        "sends_whole_numbers one_tensor_for_both rounds_to_three_digits a_row_and_no_circle",
        2: "waits_too_early receives_before_it_sends parity_again parity_with_isend never_waits sends_it_twice",
    },
    "lesson_01.time_message": {
        0: "both_receive keeps_the_time messages_a_second returns_it_on_rank_1 gives_whole_microseconds "
        "gives_a_tensor_of_seconds",
        1: (
            "both_send_at_once "
            "times_the_round_trip forgets_to_divide counts_floats_as_bytes times_the_announcement one_trip_more "
            "takes_the_reading_itself adds_the_readings times_two_trips_a_repeat "
            "times_a_barrier counts_processor_seconds times_the_first_trip times_the_last_trip "
            "leaves_out_the_first_trip starts_the_clock_each_time "
        ),
    },
    "lesson_01.fit_link": {
        0: (
            "gives_a_pair_of_tensors "
            "swaps_the_two returns_the_slope leaves_latency_out returns_one_number rounds_the_latency "
            "takes_the_smallest_message_for_latency fits_in_float32 solves_its_equations_in_float32 "
        ),
        2: "plain_least_squares divides_the_largest divides_by_the_bytes divides_one_column",
    },
    "lesson_02.tree_steps": {
        0: "one_too_many",
        1: "one_phase one_after_another half",
        2: "float rounded_down float_log rounds_up_too_late nothing always_true",
    },
    "lesson_02.tree_partner": {
        0: "divides_with_a_slash gives_false returns_nobody",
        1: (
            "counts_steps_from_0 sends_up everybody_sends_always everybody_to_the_root gives_minus_one "
            "wrong_direction gives_zero "
            "gives_itself loses_the_root "
        ),
        2: "tests_one_bit",
    },
    "lesson_02.tree_all_reduce": {
        0: (
            "tree_goes_through_numpy tree_has_a_buffer_of_rows tree_sends_an_empty_message "
            "tree_knows_no_short_whole_numbers tree_sends_to_itself tree_keeps_buffers_by_shape "
            "tree_never_waits_on_the_way_back "
            "tree_adds_whole_numbers_as_floats tree_gathers_to_the_root tree_is_a_chain "
            "tree_calls_the_collective tree_calls_reduce_and_broadcast "
            "tree_takes_the_mean tree_returns_the_sum tree_rebinds_its_argument tree_keeps_the_last_sum "
            "tree_never_waits tree_receives_into_itself tree_has_a_float32_buffer tree_changes_the_data_pointer "
        ),
        1: "ends_a_step_early tree_everybody_receives_first tree_tells_too_many tree_with_a_partner_before_the_first",
        2: "tree_takes_a_flat_view tree_forgets_to_copy_back tree_sends_what_is_not_contiguous tree_takes_a_view",
        3: (
            "tree_of_four_steps tree_without_broadcast tree_for_powers_of_two tree_with_a_partner_that_does_not_exist "
            "tree_with_a_flat_broadcast tree_is_recursive_doubling tree_adds_in_the_second_phase "
            "tree_sends_at_every_step "
        ),
    },
    "lesson_02.tree_sum": {
        0: (
            "tree_writes_back_by_a_slice "
            "tree_knows_no_short_whole_numbers "
            "tree_adds_whole_numbers_as_floats tree_does_nothing tree_adds_into_another_tensor "
            "tree_receives_beside_its_tensor "
            "tree_reads_before_it_waits tree_never_waits_for_its_isend tree_leaves_its_isends tree_in_float16 "
            "tree_in_bfloat16 "
        ),
        1: "tree_sends_and_forgets_to_add tags_on_one_side",
        3: "tree_sum_without_broadcast tree_goes_back_first_step_first",
        2: "tree_sum_of_a_copy",
    },
    "lesson_02.chunk_to_send": {
        0: "float",
        1: "own_chunk backwards constant two_at_once of_sixteen_at_most",
        2: "no_modulo",
    },
    "lesson_02.chunk_owned": {
        0: "none",
        2: "no_modulo",
        3: "plus_two last_sent first_sent own of_sixteen_at_most of_a_ring_to_the_right",
    },
    "lesson_02.ring_all_reduce": {
        0: (
            "ring_goes_through_numpy ring_sends_element_by_element "
            "ring_knows_three_dtypes ring_sends_halves_as_float32 "
            "ring_adds_whole_numbers_as_floats ring_goes_to_the_right ring_has_one_step_too_many "
            "ring_gathers_to_rank_0 ring_calls_the_collective "
            "ring_calls_reduce_scatter_and_all_gather ring_takes_the_mean ring_takes_the_whole_mean "
            "ring_works_on_a_flat_copy ring_resizes_its_tensor ring_writes_beside_its_tensor "
            "ring_forgets_the_modulo ring_goes_right_with_the_left_ones_chunks ring_in_float64 ring_tells_the_length "
            "reduces_functionally adds_what_it_sent "
        ),
        1: (
            "ring_cuts_short_at_the_end ring_passes_whole_tensors ring_passes_whole_tensors_twice ring_pads_the_tensor "
            "ring_drops_the_remainder ring_puts_the_remainder_in_the_last_chunk ring_is_a_tree "
            "ring_has_one_buffer_length ring_cuts_with_chunk ring_cuts_rows "
        ),
        2: (
            "ring_is_serial ring_goes_by_parity ring_of_blocking_sends ring_of_blocking_receives "
            "ring_waits_for_its_send_at_once ring_adds_before_the_wait ring_adds_zeros_before_the_wait "
            "ring_receives_into_what_it_sends ring_never_waits receives_into_the_chunk "
        ),
        3: (
            "ring_adds_to_the_next_chunk ring_adds_to_the_chunk_before ring_without_all_gather "
            "ring_adds_in_the_second_phase ring_is_one_step_short ring_copies_in_both_phases "
            "ring_starts_its_numbers_again numbers_go_down adds_to_what_it_sends "
        ),
    },
    "lesson_02.ring_sum": {
        0: "ring_writes_back_by_a_slice ring_knows_three_dtypes ring_keeps_its_chunks ring_sum_of_a_copy "
        "ring_adds_whole_numbers_as_floats ring_has_a_barrier ring_does_nothing "
        "ring_rebinds_its_argument ring_adds_in_float32 ring_in_float16 "
        "ring_in_bfloat16 ring_sends_float16",
        2: "ring_leaves_its_isends receives_into_the_chunk",
        3: "numbers_go_down adds_to_what_it_sends "
        "ring_sum_adds_to_the_chunk_before ring_fills_with_nan ring_gathers_into_its_list",
    },
    "lesson_02.point_to_point_s": {
        0: "knows_one_network bits text nan counts_bytes_as_numbers six_decimals nothing_for_no_bytes whole_bytes",
        1: "no_latency no_bytes times larger floors",
    },
    "lesson_02.tree_all_reduce_s": {
        0: "natural_log half_of_the_bytes six_decimals in_float32 swaps_its_arguments nothing_for_no_bytes",
        1: "calls_a_product calls_two_latencies one_phase rounded_down not_rounded chunks serial latency_once",
    },
    "lesson_02.ring_all_reduce_s": {
        0: (
            "half_of_the_bytes n_minus_one_chunks chunks_rounded_up six_decimals in_float32 swaps_its_arguments "
            "nothing_for_no_bytes four_bytes_at_least "
        ),
        1: (
            "calls_a_product calls_two_latencies "
            "a_chunk_less one_phase n_steps bytes_only tree pays_latency_once one_step_more "
        ),
        2: "whole divided",
    },
    "lesson_02.crossover_bytes": {
        0: (
            "one_decimal meets_on_one_network "
            "elements bits infinite whole_bytes one_phase_of_the_tree n_steps_around in_seconds three_digits "
            "counts_the_way_up_alone tree_pays_1_tensors_in_all tree_pays_2_tensors_in_all "
            "searches_below_a_gigabyte"
        ),
        1: "by_log2_of_n negative times_n constant none_for_never whole_tensors_around two_tensors_around",
        2: "not_rounded_up_from_5 rounded_down_from_5 not_rounded",
    },
    "lesson_02.halving_doubling_all_reduce": {
        1: "halving_is_a_ring halving_is_a_tree halving_exchanges_whole_tensors halving_keeps_the_low_half_twice",
        2: "halving_without_doubling halving_takes_turns halving_with_blocking_sends",
    },
    "lesson_06.all_gather": {
        0: (
            "SpinsUntilAllHaveArrived GivesOneStackedTensor PutsItsOwnTensorFirst "
            "TurnsTheList KeepsItsBuffersOnTheClass SortsWhatAllShare "
            "FlattensTheTensors GathersSinglePrecision PutsItsOwnTensorIn "
            "GathersIntoTheSameTensors ReturnsOneListPerRank PutsTheCallersTensorsIn KeepsTheShapeOfTheFirstCall "
            "ReshapesToTheFirstCall WaitsALittle CountsTheCallsOfRankZero GathersInABufferOfTheDefaultDtype "
            "GathersWholeNumbersAsFloats "
            "SlotsOfTheClass ReadsItsOwnSlot RemembersBarriersByACache "
        ),
        1: (
            "AppendsInOrderOfArrival DrawsTicketsFromOneGenerator "
            "HasOneBarrier ReadsBeforeAllHaveWritten ReturnsOneListToAllRanks NeverEmptiesTheBuffer "
            "SleepsInPlaceOfABarrier HasABarrierForOneLess TakesItsOwnForWhatIsNotThere "
        ),
        2: (
            "ClearsTheBufferBeforeAllHaveRead LastRankClearsTheBuffer MakesTheBufferWithoutALock "
            "MakesSlotsInAFactory ClearsAfterTheLastBarrier "
            "RemembersSlotsByACache MakesSlotsInAContainerOfPythons CountsInAClosure "
            "MakesSlotsInALibrarysFunction MakesSlotsInAFunctionThatALibraryCalls "
            "MakesABarrierWithEachList TidiesUpWithoutABarrier "
            "LooksAtAFlagAndThenSetsIt MakesItsLockWithoutALock TakesTheLockOnlyIfItIsFree"
        ),
        3: (
            "LetsOnlyRankZeroReachTheSecondBarrier WaitsInsideTheLock MakesABarrierACall MakesBarriersInAFactory "
            "MakesMailboxesInAFactory "
        ),
    },
    "lesson_06.all_reduce": {
        0: (
            "DividesByTheRanksThatHaveArrived ForgetsTheMean TakesAnyOp TakesCapitals AddsIntoTheCallersTensor "
            "DividesBeforeAndAfter GivesTheSumToRankZeroOnly SumsToOneNumber AveragesIfNotTold "
            "TakesTheAverageForTheMean ReducesSinglePrecision GivesTheTensorBackAlone AddsItsOwnFirst "
            "AddsTheOthersToItsOwn AddsItsOwnLast AddsBackwardsOnTheLastRank SumsInSinglePrecision "
            "RefusesAfterTheGather "
            "RefusesAfterABarrier RefusesOnRankZeroAndWaitsElsewhere RefusesOnRankZeroOnly AssertsTheOp "
            "LooksTheOpUp AnswersInDoublePrecision DividesByFour DividesWholeNumbers "
            "AddsWholeNumbersAsFloats LooksForTheOpInAText WritesIntoOneBufferARank WritesIntoOneBufferForAll "
            "MultipliesByTheReciprocalOnOneRank "
        ),
        1: "SumsBeforeAllHaveArrived TakesItsOwnForWhatIsNotThere NeverClearsTheTotal SharesOneResult "
        "ReusesTheGroupAtOnce ReadsTheSharedListBehindTheBarrier",
        2: (
            "AddsWithoutALock AddsInPlaceWithoutALock AddsArraysWithoutALock AddsToAnArrayOfNumpys "
            "ClearsAfterTheLastBarrier ClearsTheTotalWhileOthersRead "
            "AddsAtIndicesWithoutALock AddsListsOfTensorsWithoutALock "
        ),
    },
    "lesson_06.split_batch": {
        0: "keeps_the_first_sizes",
        1: (
            "drops_the_remainder gives_the_last_rank_the_remainder takes_every_nth overlaps_by_one gives_numpy "
            "rounds_up forgets_to_shift_the_start shifts_the_start_only begins_with_the_last_rank "
            "always_gives_a_table forgets_the_return splits_in_single_precision cuts_at_fractions counts_numbers "
        ),
    },
    "lesson_06.dp_step": {
        0: (
            "feeds_the_labels "
            "reduces_nothing never_clears_gradients forgets_the_step reduces_twice returns_the_loss_of_all_ranks "
            "steps_by_hand steps_with_the_step_size_alone only_rank_zero_steps averages_the_weights "
            "averages_the_weights_first steps_twice divides_by_four travels_in_half has_a_group_for_each_rank "
            "gathers_the_gradients gathers_the_weights has_a_place_for_each_rank averages_both "
            "returns_the_loss_after_the_step turns_the_gradient_around takes_signs scales_to_length_one "
            "takes_another_loss averages_the_updates clears_after_the_step adds_weight_decay "
            "gives_the_loss_with_its_graph"
        ),
        1: "sums_instead_of_the_mean divides_the_mean_again sums_the_loss",
        2: "never_puts_the_mean_back reduces_each_parameter_alone puts_back_in_reverse_order clips_after_the_sum "
        "forgets_the_last_parameter averages_with_its_own clears_some_gradients keeps_the_first_parameters",
    },
    "lesson_06.weighted_dp_step": {
        0: (
            "remembers_its_share returns_a_weighted_loss returns_a_root "
            "returns_the_loss_of_the_whole_batch averages_the_weighted_weights gathers_gradients_and_counts "
            "averages_the_weighted_updates brings_single_zeros_for_an_empty_shard clears_after_the_step "
        ),
        1: (
            "lets_an_empty_shard_give_nan skips_the_call_for_an_empty_shard returns_nan_for_an_empty_shard "
            "empty_shards_do_not_step counts_one_for_an_empty_shard "
        ),
        2: (
            "remembers_the_total "
            "takes_the_mean_of_means asks_for_the_total_in_a_second_call gathers_the_counts divides_by_its_own_size "
            "weighs_after_the_sum divides_by_the_ranks divides_by_nothing squares_the_number weighs_nothing "
            "counts_one_too_many sums_the_means "
        ),
    },
    "lesson_06.column_forward": {
        0: (
            "KeepsItsPartTwice "
            "NeverGathers GathersInOrderOfArrival StacksBelowEachOther GathersTheWeight CutsColumnsUnevenly "
            "ColumnAsserts CutsItsPartOutOfTheWhole HoldsTwoRowsAsText HoldsTwoRowsInAName HoldsTwoRowsInAFunction "
        ),
        1: (
            "ComputesWithACopy CopiesOnlyWhatIsNotContiguous "
            "CutsFromTheOtherEnd CutsEveryNthColumn CutsRows KeepsTheTranspose KeepsAView KeepsTheWholeWeightToo "
            "KeepsAllParts KeepsAWholeCopy ClosesOverTheWhole ColumnLooksAtTheRows "
            "ColumnRefusesByItsRows "
        ),
        2: "ColumnSlicesTheInput",
        3: "RemembersItsCut",
    },
    "lesson_06.column_backward": {
        0: (
            "ReturnsOneBuffer "
            "ReducesTheInputGradientTwice AveragesTheInputGradient ReducesTheWeightGradient "
            "ScalesTheUpstreamGradient LetsAutogradDoIt AveragesTheWeightGradient AddsUpColumnGradients "
            "LetsAutogradFollowACopy ColumnAddsUpWhatItGathers HoldsTwoRowsAsText "
        ),
        1: "GoesBackWithACopy",
        2: (
            "NeverSlicesTheUpstreamGradient KeepsTheWholeWeightGradient NeverReducesTheInputGradient "
            "SlicesTheWrongColumns DividesByTheBatch KeepsTheGradientsTranspose ColumnCachesASlice "
            "ColumnGathersTheInputGradient ColumnMasksTheUpstreamGradient ColumnGoesBackWithTheNotebooksX "
        ),
        3: "KeepsTheFirstInput CachesTheInputOnTheClass KeepsItsGradientOnTheClass",
    },
    "lesson_06.row_forward": {
        0: (
            "AveragesTheOutput ReducesTheOutputTwice AddsUpWhatItGathered CutsRowsUnevenly OnlyRankZeroRefuses "
            "HoldsTwoRowsPacked SumsTheWholeWeight"
        ),
        1: (
            "RowComputesWithACopy "
            "KeepsTheWholeRowsToo NeverSlicesTheInput NeverReducesTheOutput GathersTheOutput CutsColumns "
            "SlicesTheWrongInput KeepsTheWholeInADictionary KeepsTheWholeInDoublePrecision "
            "KeepsTheNextRanksPartToo RowLooksAtTheColumns CutsExamples RowKeepsFloat64"
        ),
        3: "RemembersItsRows",
    },
    "lesson_06.row_backward": {
        0: "SumsTheWeightGradient AddsUpRowGradients LeavesNoWeightGradient RowPadsAndAddsUp RowLetsAutogradDoIt "
        "RowKeepsItsPartTwice RowGathersItsOutput RowAddsWhatItGathers RowReducesTwiceForward",
        1: (
            "RowRefusesByItsColumns "
            "RowGoesBackWithACopy "
            "DividesTheUpstreamGradientByN CachesTheWholeInput SumsTheUpstreamGradient "
            "AveragesTheUpstreamGradient RowSlicesTheUpstreamGradient RowChunksTheUpstreamGradient "
            "RowMasksTheUpstreamGradient CachesFewerExamples RowGathersItsWeightGradient "
        ),
        2: (
            "FillsItsOwnFeatures NeverGathersTheInputGradient GathersTheGradientInOrderOfArrival ForgetsTheTranspose "
            "RowReducesTheInputGradient GoesBackWithTheNotebooksX "
        ),
        3: "CachesTheInputOfAnotherShard CachesOnTheClass",
    },
    "lesson_06.column_then_row": {
        1: (
            "remembers_the_output remembers_the_rows "
            "forgets_the_reduction averages_the_shares gathers_and_slices_again forgets_the_gelu "
            "activates_the_sum reduces_the_block_twice gathers_without_slicing takes_a_relu cuts_again "
            "activates_the_weight reduces_the_hidden_columns reduces_the_hidden_columns_too cuts_the_batch "
            "empties_the_input multiplies_in_single only_rank_zero_adds_up sends_the_weights "
        ),
    },
    "lesson_06.parallelize": {
        0: (
            "makes_a_context gives_all_layers_one_name goes_by_the_classes_names cuts_only_the_first "
            "leaves_layers_unwrapped "
            "remembers_models_by_shape remembers_models_by_id "
            "gives_every_rank_the_first_slice draws_fresh_weights ignores_the_map replaces_nothing takes_any_size "
            "takes_uneven_parts asserts_the_size hangs_the_whole cuts_layers_by_their_names "
            "cuts_lin1_everywhere takes_the_lessons_classes takes_the_names_for_granted empties_the_plan "
        ),
        1: "forgets_the_transpose hands_over_half_a_weight",
        2: "makes_one_model_for_all_ranks cuts_one_copy_again gives_one_model cuts_the_model_itself "
        "draws_the_lessons_model copies_what_is_cut "
        "copies_shallowly "
        "gives_no_models gives_the_models_one_by_one gives_rank_zero_the_model_itself shares_what_is_whole "
        "copies_only_the_outside",
    },
}


def expected_hint(wrong: Wrong) -> int | None:
    """The number said for a planted mistake; None if nobody has said one."""
    return next((n for n, names in HINTS.get(wrong.check, {}).items() if wrong.name in names.split()), None)
