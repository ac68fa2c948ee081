"""Job x Machine -> Plan: the cost of a step before it is run. Nothing here imports torch.

The calls of `trainyard plan`, from the command to its result:

    api.plan
        search.shortlist.shortlist        the recommended layout, other fast ones, and the baseline
            Framework.layouts             every layout that the framework supports
            offload_variants.add_offloaded  bytes of each, with and without offloading
            best_first.BestFirstSearch    step times, simulated in the order of a lower bound
                step.step
            layout_ratio.step_ratio       whether a layout is tied with the fastest
            layout_cost.cost_case         one layout: ledger, range, bill and memory
        layout_cost.cost_job              plan check: one job as it is
            framework_memory.memory
            step.step
            layout_cost.cost_case
        device_scaling.scaling            --tokens: the fastest layout on fewer and on more devices
            search.search.fastest
                narrow_search.find_fastest  of the few layouts with a low floor (work_floor.step_floors)
        hetero.best_pipelines.find        --machine A:8,B:16: pipelines over different machines
            pipeline_step.cost_pipeline
"""
