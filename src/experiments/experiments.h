// Plan and measure of each experiment, one file each.
#pragma once

#include "experiments/experiment.h"

namespace tensorcache::experiments {

using Plan = Result<std::vector<TrainJob>>;

Plan PlanRecall(const ExperimentOptions& options);
Result<ExperimentResult> MeasureRecall(const MeasureContext& context);
Plan PlanOod(const ExperimentOptions& options);
Result<ExperimentResult> MeasureOod(const MeasureContext& context);
Plan PlanLongGap(const ExperimentOptions& options);
Result<ExperimentResult> MeasureLongGap(const MeasureContext& context);
Plan PlanFarGap(const ExperimentOptions& options);
Result<ExperimentResult> MeasureFarGap(const MeasureContext& context);
Plan PlanPairs(const ExperimentOptions& options);
Result<ExperimentResult> MeasurePairs(const MeasureContext& context);
Plan PlanMultistore(const ExperimentOptions& options);
Result<ExperimentResult> MeasureMultistore(const MeasureContext& context);
Plan PlanMqar(const ExperimentOptions& options);
Result<ExperimentResult> MeasureMqar(const MeasureContext& context);
Plan PlanAblation(const ExperimentOptions& options);
Result<ExperimentResult> MeasureAblation(const MeasureContext& context);
Plan PlanNeedle(const ExperimentOptions& options);
Result<ExperimentResult> MeasureNeedle(const MeasureContext& context);
Plan PlanChunks(const ExperimentOptions& options);
Result<ExperimentResult> MeasureChunks(const MeasureContext& context);
Plan PlanRules(const ExperimentOptions& options);
Result<ExperimentResult> MeasureRules(const MeasureContext& context);
Plan PlanSlots(const ExperimentOptions& options);
Result<ExperimentResult> MeasureSlots(const MeasureContext& context);
Plan PlanTimescales(const ExperimentOptions& options);
Result<ExperimentResult> MeasureTimescales(const MeasureContext& context);
Plan PlanGates(const ExperimentOptions& options);
Result<ExperimentResult> MeasureGates(const MeasureContext& context);
Plan PlanLayers(const ExperimentOptions& options);
Result<ExperimentResult> MeasureLayers(const MeasureContext& context);
Plan PlanNorms(const ExperimentOptions& options);
Result<ExperimentResult> MeasureNorms(const MeasureContext& context);
Plan PlanEfficiency(const ExperimentOptions& options);
Result<ExperimentResult> MeasureEfficiency(const MeasureContext& context);
Plan PlanShakespeare(const ExperimentOptions& options);
Result<ExperimentResult> MeasureShakespeare(const MeasureContext& context);
Plan PlanNovels(const ExperimentOptions& options);
Result<ExperimentResult> MeasureNovels(const MeasureContext& context);
Result<ExperimentResult> MeasureCapacityTable(const MeasureContext& context);
Result<ExperimentResult> MeasureScaling(const MeasureContext& context);
Result<ExperimentResult> MeasureThroughput(const MeasureContext& context);

}  // namespace tensorcache::experiments
